//! Shares that are nearly right: the step's, worked out once more with one term that is another.

use admittance::concurrency::{Members, Node, Record, Split};

use super::Mutant;

/// The share and the fair one of a reporter whom the step has just answered, as a coordinator with
/// this mutant has them. None if the mutant is of another kind.
pub(super) fn flawed(
    mutant: Mutant,
    members: &mut Members,
    reporter: &Node,
    before: Option<&Members>,
) -> Option<(u32, u32)> {
    let answered = members.clone();
    // The step saw what the node had, in the same epoch and by the same rules.
    let has = before
        .filter(|before| before.epoch == members.epoch && before.rules == members.rules)
        .and_then(|before| before.records.get(reporter))
        .map_or(0, |record| record.share);
    members.records.get_mut(reporter)?.share = has;
    let part = terms(mutant, members, reporter);
    if part.is_none() {
        *members = answered;
    }
    let (share, fair) = part?;
    let record = members.records.get_mut(reporter)?;
    record.share = share;
    record.unacked = record.unacked.max(share);
    Some((share, fair))
}

fn terms(mutant: Mutant, members: &Members, reporter: &Node) -> Option<(u32, u32)> {
    use Mutant::{
        FairToldWhileQuiet, HungryWithNothing, KeptAboveTheEqualPart, KeptAmongTheHeard,
        KeptDropped, LevelOfTheLimit, SpareForNobody, SpareForTheSated, TiesInReverse,
        WantsOneMoreOnly, WorkedOut,
    };
    let is_one = matches!(
        mutant,
        WorkedOut
            | KeptDropped
            | KeptAboveTheEqualPart
            | KeptAmongTheHeard
            | LevelOfTheLimit
            | TiesInReverse
            | WantsOneMoreOnly
            | SpareForTheSated
            | SpareForNobody
            | HungryWithNothing
            | FairToldWhileQuiet
    );
    let live: Vec<(&Node, &Record)> =
        members.records.iter().filter(|(_, record)| members.latest < record.live_until).collect();
    let equal = part(members.limit, live.iter().map(|(node, _)| *node), reporter);
    let target = match members.rules.split {
        Split::Equal => equal,
        Split::Demand => by_demand(mutant, members, &live, reporter),
    };
    let is_quiet = members.latest < members.quiet_until;
    let others = members.records.iter().filter(|(node, _)| *node != reporter);
    let room = others.fold(members.limit, |left, (_, record)| {
        left.saturating_sub(record.reserve(members.rules.handoff))
    });
    let has = members.records.get(reporter).map_or(0, |record| record.share);
    let kept = match mutant {
        KeptDropped => 0,
        KeptAboveTheEqualPart => has,
        KeptAmongTheHeard => has.min(equal),
        _ => has.min(part(members.limit, members.records.keys(), reporter)),
    };
    let share = if is_quiet { 0 } else { target.min(room.max(kept)) };
    let fair = if is_quiet && mutant != FairToldWhileQuiet { 0 } else { target };
    is_one.then_some((share, fair))
}

fn by_demand(mutant: Mutant, members: &Members, live: &[(&Node, &Record)], reporter: &Node) -> u32 {
    let is_hungry = |record: &Record| record.in_flight >= record.share;
    let want = |record: &Record| match is_hungry(record) {
        _ if mutant == Mutant::WantsOneMoreOnly => record.in_flight.min(record.share) + 1,
        true => record.share + (record.share / 4).max(1),
        false => record.in_flight + 1 + record.in_flight.isqrt() / 2,
    };
    let mut wants: Vec<(u32, &Node)> =
        live.iter().map(|(node, record)| (want(record), *node)).collect();
    wants.sort_unstable();
    if mutant == Mutant::TiesInReverse {
        wants.reverse();
        wants.sort_by_key(|(want, _)| *want);
    }
    let (mut left, mut target) = (members.limit, 0);
    let count = u32::try_from(wants.len()).unwrap();
    for (remaining, (want, node)) in (1..=count).rev().zip(wants) {
        let level = match mutant {
            Mutant::LevelOfTheLimit => members.limit / count,
            _ => left / remaining,
        };
        left -= want.min(level);
        if node == reporter {
            target = want.min(level);
        }
    }
    if !is_hungry(&members.records[reporter]) && mutant != Mutant::SpareForTheSated {
        return target;
    }
    let hungry = live.iter().filter(|(_, record)| is_hungry(record)).map(|(node, _)| *node);
    let spare = if mutant == Mutant::SpareForNobody { 0 } else { part(left, hungry, reporter) };
    (target + spare).max(u32::from(mutant != Mutant::HungryWithNothing))
}

/// The same for each, the remainder to the first.
fn part<'a>(whole: u32, nodes: impl Iterator<Item = &'a Node>, one: &Node) -> u32 {
    let nodes: Vec<&Node> = nodes.collect();
    let rank = nodes.iter().position(|node| *node == one).unwrap_or(nodes.len());
    let count = nodes.len().max(1);
    let whole = usize::try_from(whole).unwrap();
    u32::try_from(whole / count + usize::from(rank < whole % count)).unwrap()
}
