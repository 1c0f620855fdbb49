//! Mistakes that an account can make. Each must be seen.

/// What is wrong with an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutant {
    #[default]
    Nothing,
    /// A window's end forgets what is owed.
    ForgetsDebt,
    /// What a budget would forgive is carried.
    NeverForgives,
    /// A window pays debt with all its units, spent or not.
    PaysWithWhatIsSpent,
    /// A window pays debt with units that are reserved.
    PaysWithWhatIsReserved,
    /// Windows that passed unused pay nothing.
    UnusedWindowsPayNothing,
    /// What is returned goes to the present window, whichever it came from.
    RefundsToTheWrongWindow,
    /// What an earlier window had reserved is spent in the present one.
    ChargesTheWrongWindow,
    /// Of what was debited too much, the latest is taken for it.
    RefundsTheLatestFirst,
    /// What was debited too much is not given back.
    KeepsWhatWasDebited,
    SettlesTwice,
    /// A lease is forgotten as soon as it is settled.
    ForgetsTheSettled,
    /// A lease is forgotten as soon as its time is over.
    ForgetsTheExpired,
    ForgetsATickEarly,
    ForgetsATickLate,
    ChargesOnDenial,
    /// The debit that crosses the limit counts only up to it.
    CountsUpToTheLimit,
    /// The debit that crosses the limit is refused.
    RefusesTheCrossing,
    /// A debit draws nothing from its own reservation.
    IgnoresTheReservation,
    /// One whose time is over debits no more.
    RefusesTheExpired,
    /// One that was settled debits on.
    DebitsTheSettled,
    NeverExpires,
    ExpiresATickEarly,
    ExpiresATickLate,
    /// A debit does not prolong a lease.
    HearsNoDebit,
    /// Asking for a reservation again does not prolong it.
    HearsNoReserve,
    /// A clock that has stepped back makes a lease shorter.
    HearsBackwards,
    /// What has expired is not remembered for longer when it is heard of.
    HearsNoExpired,
    /// Asking for a reservation again takes it again.
    ReservesTwice,
    /// One that has ended begins again.
    ReservesTheEnded,
    /// A reservation is admitted as long as anything is left.
    ReservesWithoutRoom,
    /// A reservation of nothing is admitted although nothing is left.
    ReservesNothing,
    /// A debit of nothing is refused if nothing is left.
    RefusesNothing,
    LivesAsLongAsAsked,
    OpenWithoutBound,
    RemembersWithoutBound,
    /// What nobody settled is forgotten like what was settled if too many are remembered.
    ForgetsTheUnsettled,
    /// Too many are remembered, and the one that was just settled is the first to be forgotten.
    ForgetsItself,
    /// However many ended unsettled, others are reserved for.
    UnsettledWithoutBound,
    /// A place is said to be there as soon as one of too many unsettled ones is forgotten.
    WaitsForOneUnsettled,
    ForgetsTheLatest,
    /// Of two that end at one instant, the order is by the digits.
    TiesByTheLowerHalf,
    OverrunsAreFree,
    /// What is beyond the reservation when it is settled is spent, not owed.
    OverrunsAreSpent,
    DebtWithoutBound,
    LooksAtEveryLease,
    LooksAtNoLease,
    /// Of just as many leases as it looks at, the last is taken for one of more.
    LooksAtOneLess,
    /// It waits for the first lease to end, also if more than one is too many.
    WaitsForOneOfSeveral,
    /// It waits for what is left, and then there is no place.
    WaitsForTheBudgetOnly,
    /// Whoever waits is told the end of the window, also if the next one pays debt.
    WaitsForTheNextWindow,
    /// More than the limit is told to wait.
    NeverSaysNever,
    ResetsWithDebt,
    StepsBack,
    SoftStopsOneLate,
    /// The rules are those of the first entry.
    KeepsTheFirstRules,
    /// What the lease still has is not told.
    UnspentUntold,
    /// A look leaves no trace, not even of what has ended.
    LooksLeaveNoTrace,
}

impl Mutant {
    /// Every one.
    pub const ALL: &[Self] = &[
        Self::ForgetsDebt,
        Self::NeverForgives,
        Self::PaysWithWhatIsSpent,
        Self::PaysWithWhatIsReserved,
        Self::UnusedWindowsPayNothing,
        Self::RefundsToTheWrongWindow,
        Self::ChargesTheWrongWindow,
        Self::KeepsWhatWasDebited,
        Self::RefundsTheLatestFirst,
        Self::SettlesTwice,
        Self::ForgetsTheSettled,
        Self::ForgetsTheExpired,
        Self::ForgetsATickEarly,
        Self::ForgetsATickLate,
        Self::ChargesOnDenial,
        Self::CountsUpToTheLimit,
        Self::RefusesTheCrossing,
        Self::IgnoresTheReservation,
        Self::RefusesTheExpired,
        Self::DebitsTheSettled,
        Self::NeverExpires,
        Self::ExpiresATickEarly,
        Self::ExpiresATickLate,
        Self::HearsNoDebit,
        Self::HearsNoReserve,
        Self::HearsBackwards,
        Self::HearsNoExpired,
        Self::ReservesTwice,
        Self::ReservesTheEnded,
        Self::ReservesWithoutRoom,
        Self::ReservesNothing,
        Self::RefusesNothing,
        Self::LivesAsLongAsAsked,
        Self::OpenWithoutBound,
        Self::RemembersWithoutBound,
        Self::ForgetsTheUnsettled,
        Self::ForgetsItself,
        Self::UnsettledWithoutBound,
        Self::WaitsForOneUnsettled,
        Self::ForgetsTheLatest,
        Self::TiesByTheLowerHalf,
        Self::OverrunsAreFree,
        Self::OverrunsAreSpent,
        Self::DebtWithoutBound,
        Self::LooksAtEveryLease,
        Self::LooksAtNoLease,
        Self::LooksAtOneLess,
        Self::WaitsForOneOfSeveral,
        Self::WaitsForTheBudgetOnly,
        Self::WaitsForTheNextWindow,
        Self::NeverSaysNever,
        Self::ResetsWithDebt,
        Self::StepsBack,
        Self::SoftStopsOneLate,
        Self::KeepsTheFirstRules,
        Self::UnspentUntold,
        Self::LooksLeaveNoTrace,
    ];
}
