//! The tier in this process, over a store in memory. Time is tokio's, for the store and for the
//! leases, and stands still until everything waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance::two_tier::{Batch, InvalidLeasing, LeaseClock, Leasing, TwoTier};
use admittance::{
    Action, Applied, Builtin, Clock, Cost, Decided, FailMode, Gcra, GuardSettings, Guarded, Memory,
    Micros, Op, SharedLimiter, SlidingWindow, Source, Span, Store, Tat, Window,
};
use admittance_testkit::{Behavior, Scripted};
use tokio::time::{Instant, advance, sleep};

/// Tokio's time, from an instant of one's own on.
#[derive(Clone, Copy)]
struct Time {
    began: Instant,
    at: Micros,
}

impl Time {
    fn from_ms(ms: u64) -> Self {
        Self { began: Instant::now(), at: Micros::from_epoch_ms(ms).unwrap() }
    }

    fn read(&self) -> Micros {
        self.at + Span::from_us(u64::try_from(self.began.elapsed().as_micros()).unwrap())
    }
}

impl Clock for Time {
    fn now(&self) -> Micros {
        self.read()
    }
}

/// A node's clock, which agrees with nobody's; the wall clock can be set.
#[derive(Clone)]
struct NodeTime {
    time: Time,
    wall_ahead_ms: Arc<AtomicU64>,
}

impl LeaseClock for NodeTime {
    fn now(&self) -> Micros {
        self.time.read()
    }

    fn wall(&self) -> Micros {
        self.time.read() + Span::from_ms(self.wall_ahead_ms.load(Ordering::SeqCst))
    }
}

type Tier = TwoTier<Arc<Slow>, NodeTime>;

/// A store in memory that can be slow.
type Slow = Scripted<Memory<Time>>;

/// What the store was asked.
#[derive(Default)]
struct Counts {
    leases: AtomicU64,
    checks: AtomicU64,
    given_back: AtomicU64,
    restored: AtomicU64,
}

impl Counts {
    fn count(&self, op: &Op<'_>, applied: &Applied) {
        if op.policy == Guarded::<Slow>::PROBE_POLICY {
            return;
        }
        let counter = match op.action {
            Action::Lease(_) => &self.leases,
            Action::GiveBack(_) => &self.given_back,
            _ => &self.checks,
        };
        counter.fetch_add(1, Ordering::SeqCst);
        if let admittance::Answer::GivenBack(units) = applied.answer {
            self.restored.fetch_add(units, Ordering::SeqCst);
        }
    }
}

struct Rig {
    store: Arc<Slow>,
    counts: Arc<Counts>,
    time: Time,
}

impl Rig {
    fn new() -> Self {
        let (time, counts) = (Time::from_ms(1_700_000_000_000), Arc::<Counts>::default());
        let counted = Arc::clone(&counts);
        let store = Scripted::new(Memory::new(time).max_keys(10_000))
            .watched(move |op, applied| counted.count(op, applied));
        Self { store: Arc::new(store), counts, time }
    }

    /// From now on replies are on their way for so long: the store has decided, the node does not
    /// know yet.
    fn replies_after(&self, delay: Duration) {
        self.store.behaves(move |request| match request.is_probe() {
            true => Behavior::serve(),
            false => Behavior::serve().reply_after(sleep(delay)),
        });
    }

    fn leases(&self) -> u64 {
        self.counts.leases.load(Ordering::SeqCst)
    }

    fn shared(&self, strategy: Builtin, fail: FailMode) -> SharedLimiter<Arc<Slow>> {
        let settings = GuardSettings { deadline: Span::from_ms(20), ..GuardSettings::default() };
        let guard = Guarded::start(Arc::clone(&self.store), settings);
        SharedLimiter::new("api", strategy, Arc::new(guard), fail).unwrap()
    }

    fn node(&self, strategy: Builtin, leasing: Leasing) -> Tier {
        self.try_node(strategy, leasing).unwrap()
    }

    fn try_node(&self, strategy: Builtin, leasing: Leasing) -> Result<Tier, InvalidLeasing> {
        TwoTier::leased_on(self.shared(strategy, FailMode::Closed), leasing, node_time(7))
    }
}

fn node_time(hours: u64) -> NodeTime {
    let time = Time::from_ms(hours * 3_600_000);
    NodeTime { time, wall_ahead_ms: Arc::new(AtomicU64::new(0)) }
}

fn window(limit: u64, secs: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(secs)).unwrap().into()
}

fn batch(units: u64) -> Leasing {
    Leasing { batch: Batch::Fixed(units), ..Leasing::default() }
}

async fn check(tier: &Tier, key: &[u8]) -> Decided {
    tier.check(key, Cost::ONE).await.unwrap()
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_ask_and_nothing_of_the_limit_is_lost() {
    let rig = Rig::new();
    let node = rig.node(window(1_000, 60), batch(100));
    for place in 0..1_000 {
        let decided = check(&node, b"ann").await;
        assert!(decided.decision.is_admit(), "{place}");
        assert_eq!(decided.source == Source::Store, place % 100 == 0, "{place}");
    }
    assert_eq!(rig.leases(), 10);
    let denied = check(&node, b"ann").await;
    assert!(!denied.decision.is_admit());
    assert_eq!(denied.source, Source::Store);
    // The window of the store that denied is the one that is waited for.
    sleep(denied.decision.retry_after().unwrap().into()).await;
    assert!(check(&node, b"ann").await.decision.is_admit());
}

#[tokio::test(start_paused = true)]
async fn a_denial_takes_nothing_and_what_is_left_is_not_stranded() {
    let rig = Rig::new();
    let (one, two) = (rig.node(window(10, 60), batch(4)), rig.node(window(10, 60), batch(4)));
    assert!(check(&one, b"ann").await.decision.is_admit()); // 4 of 10, 3 held.
    assert!(check(&two, b"ann").await.decision.is_admit()); // 8 of 10, 3 held.
    let five = one.check(b"ann", cost(5)).await.unwrap();
    assert!(five.decision.is_admit(), "3 held and 2 left in the store");
    let four = two.check(b"ann", cost(4)).await.unwrap();
    assert!(!four.decision.is_admit(), "3 held and nothing left");
    let three = two.check(b"ann", cost(3)).await.unwrap();
    assert!(three.decision.is_admit(), "a denial keeps what is held");
    assert!(!check(&one, b"ann").await.decision.is_admit());
}

#[tokio::test(start_paused = true)]
async fn misses_at_once_share_one_ask() {
    let rig = Rig::new();
    rig.replies_after(Duration::from_millis(5));
    let node = Arc::new(rig.node(window(1_000, 60), batch(10)));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let node = Arc::clone(&node);
        asking.spawn(async move { check(&node, b"ann").await.decision.is_admit() });
    }
    while let Some(admitted) = asking.join_next().await {
        assert!(admitted.unwrap());
    }
    assert!(rig.leases() <= 2, "{} asks", rig.leases());
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_the_deadline_and_a_late_grant_is_used() {
    let rig = Rig::new();
    rig.replies_after(Duration::from_millis(50));
    let node = rig.node(window(1_000, 60), batch(10));
    let began = Instant::now();
    let late = check(&node, b"ann").await;
    assert_eq!((late.source, late.decision.is_admit()), (Source::FailMode, false));
    assert_eq!(began.elapsed(), Duration::from_millis(20));
    sleep(Duration::from_millis(40)).await;
    for _ in 0..10 {
        assert_eq!(check(&node, b"ann").await.source, Source::Node);
    }
    assert_eq!(rig.leases(), 1);
}

#[tokio::test(start_paused = true)]
async fn credits_die_before_their_window_whatever_the_clocks_say() {
    let rig = Rig::new();
    let node = rig.node(window(100, 2), batch(50));
    let first = check(&node, b"ann").await;
    let paid_until = first.decision.reset_at;
    let store_clock = rig.time;
    while store_clock.read() < paid_until {
        if let Some(decided) = node.spend(b"ann", Cost::ONE) {
            assert_eq!(decided.decision.reset_at, paid_until);
        }
        sleep(Duration::from_millis(45)).await;
    }
    assert!(node.spend(b"ann", Cost::ONE).is_none(), "the window is over");
    assert!(check(&node, b"ann").await.decision.reset_at > paid_until);
}

#[tokio::test(start_paused = true)]
async fn closing_gives_back_what_is_held() {
    let rig = Rig::new();
    let (one, two) = (rig.node(window(100, 60), batch(100)), rig.node(window(100, 60), batch(100)));
    assert!(check(&one, b"ann").await.decision.is_admit());
    assert!(!check(&two, b"ann").await.decision.is_admit(), "the other has all of it");
    one.close().await;
    assert_eq!(rig.counts.restored.load(Ordering::SeqCst), 99);
    assert_eq!(one.stats().given_back, 99);
    for _ in 0..99 {
        assert!(check(&two, b"ann").await.decision.is_admit());
    }
    assert!(!check(&two, b"ann").await.decision.is_admit());
    assert_eq!(check(&one, b"bob").await.source, Source::Store, "it asks one by one from now on");
    assert_eq!(rig.counts.checks.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_idle_goes_back() {
    let rig = Rig::new();
    let leasing = Leasing { idle_after: Some(Span::from_secs(1)), ..batch(100) };
    let (one, two) = (rig.node(window(100, 60), leasing), rig.node(window(100, 60), batch(1)));
    assert!(check(&one, b"ann").await.decision.is_admit());
    assert!(!check(&two, b"ann").await.decision.is_admit());
    sleep(Duration::from_millis(1_500)).await;
    assert!(check(&two, b"ann").await.decision.is_admit());
    assert_eq!(rig.counts.restored.load(Ordering::SeqCst), 99);
}

#[tokio::test(start_paused = true)]
async fn at_low_water_more_is_asked_for_and_nobody_waits() {
    let rig = Rig::new();
    rig.replies_after(Duration::from_millis(5));
    let leasing = Leasing { low_water: 20, ..batch(100) };
    let node = rig.node(window(10_000, 60), leasing);
    let _ = check(&node, b"ann").await;
    for _ in 0..2_000 {
        assert_eq!(check(&node, b"ann").await.source, Source::Node);
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn clocks_that_come_apart_cost_the_credits() {
    let rig = Rig::new();
    let time = node_time(3);
    let shared = rig.shared(window(100, 60), FailMode::Closed);
    let node = TwoTier::leased_on(shared, batch(10), time.clone()).unwrap();
    let _ = check(&node, b"ann").await;
    assert!(node.spend(b"ann", Cost::ONE).is_some());
    time.wall_ahead_ms.store(90, Ordering::SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert!(node.spend(b"ann", Cost::ONE).is_some(), "a wall clock may be set a little");
    time.wall_ahead_ms.store(5_000, Ordering::SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert!(node.spend(b"ann", Cost::ONE).is_none());
    assert_eq!(node.stats().dropped, 1);
    assert_eq!(check(&node, b"ann").await.source, Source::Store);
}

#[tokio::test(start_paused = true)]
async fn an_outage_leaves_what_is_held_and_then_the_fail_mode_answers() {
    let rig = Rig::new();
    let node = rig.node(window(100, 60), batch(10));
    let _ = check(&node, b"ann").await;
    rig.replies_after(Duration::from_secs(3_600));
    for _ in 0..9 {
        assert_eq!(check(&node, b"ann").await.source, Source::Node);
    }
    for _ in 0..3 {
        assert_eq!(check(&node, b"ann").await.source, Source::FailMode);
        sleep(Duration::from_secs(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_is_forgotten() {
    let rig = Rig::new();
    rig.replies_after(Duration::from_millis(10));
    let node = rig.node(window(100, 60), batch(1));
    {
        let given_up = node.check(b"ann", Cost::ONE);
        assert!(tokio::time::timeout(Duration::from_millis(5), given_up).await.is_err());
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(check(&node, b"ann").await.source, Source::Node, "its unit is the node's");
}

#[tokio::test(start_paused = true)]
async fn a_learned_batch_follows_the_demand() {
    let rig = Rig::new();
    let leasing = Leasing { batch: Batch::Learned, ..Leasing::default() };
    let node = rig.node(window(1_000_000, 1), leasing);
    for second in 0..20 {
        for _ in 0..10_000 {
            assert!(check(&node, b"ann").await.decision.is_admit());
        }
        sleep(Duration::from_secs(1)).await;
        if second == 9 {
            rig.counts.leases.store(0, Ordering::SeqCst);
        }
    }
    // The best batch for 10,000 is 632, sixteen asks a window.
    let per_window = rig.leases() / 10;
    assert!((10..=25).contains(&per_window), "{per_window} asks in a window");
}

#[tokio::test(start_paused = true)]
async fn a_flood_on_a_blocked_key_is_one_ask_per_wait() {
    let rig = Rig::new();
    let gcra = Gcra { limit: 10, period: Span::from_secs(10), burst: 10 };
    let shared = rig.shared(Tat::gcra(gcra).unwrap().into(), FailMode::Closed);
    let tier = Arc::new(TwoTier::cached_deny_on(shared, 100, node_time(1)));
    for _ in 0..10 {
        assert!(check(&tier, b"ann").await.decision.is_admit());
    }
    let denied = check(&tier, b"ann").await;
    assert_eq!((denied.source, denied.decision.is_admit()), (Source::Store, false));
    rig.counts.checks.store(0, Ordering::SeqCst);
    for _ in 0..1_000 {
        advance(Duration::from_micros(100)).await;
        let again = check(&tier, b"ann").await;
        assert_eq!((again.source, again.decision.is_admit()), (Source::Node, false));
        assert!(again.decision.retry_after() < denied.decision.retry_after());
    }
    assert_eq!(rig.counts.checks.load(Ordering::SeqCst), 0);
    // A hundred thousand over ten waits: one is admitted for each, one denied, nobody else asks.
    for _ in 0..100_000 {
        advance(Duration::from_micros(100)).await;
        let _ = check(&tier, b"ann").await;
    }
    let asked = rig.counts.checks.load(Ordering::SeqCst);
    assert!(asked <= 2 * 10, "{asked} asks in ten waits");
    // A smaller cost than the denied one is another question.
    let five = tier.check(b"bob", cost(20)).await.unwrap();
    assert!(!five.decision.is_admit());
    assert!(check(&tier, b"bob").await.decision.is_admit());
}

#[tokio::test(start_paused = true)]
async fn when_a_wait_is_over_one_asks_and_the_others_wait_for_its_answer() {
    let rig = Rig::new();
    let shared = rig.shared(window(1, 60), FailMode::Closed);
    let tier = Arc::new(TwoTier::cached_deny_on(shared, 100, node_time(1)));
    assert!(check(&tier, b"ann").await.decision.is_admit());
    let denied = check(&tier, b"ann").await;
    let wait: Duration = denied.decision.retry_after().unwrap().into();
    advance(wait - Duration::from_micros(1)).await;
    assert_eq!(check(&tier, b"ann").await.source, Source::Node);
    // The store's own wait is over a moment later than ours; then it denies again, for all.
    rig.replies_after(Duration::from_millis(5));
    rig.counts.checks.store(0, Ordering::SeqCst);
    assert!(!rig.store.inner().apply(op(b"ann")).await.unwrap().decision().unwrap().is_admit());
    advance(Duration::from_micros(1)).await;
    let spent = rig.store.inner().apply(op(b"ann")).await.unwrap();
    assert!(spent.decision().unwrap().is_admit(), "another node was first");
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let tier = Arc::clone(&tier);
        asking.spawn(async move { check(&tier, b"ann").await.decision.is_admit() });
    }
    while let Some(admitted) = asking.join_next().await {
        assert!(!admitted.unwrap());
    }
    assert_eq!(rig.counts.checks.load(Ordering::SeqCst), 1);
}

fn op(key: &'static [u8]) -> Op<'static> {
    static STRATEGY: std::sync::OnceLock<Builtin> = std::sync::OnceLock::new();
    let strategy = STRATEGY.get_or_init(|| window(1, 60));
    Op { policy: "api", strategy, key, action: Action::Check(Cost::ONE) }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_leased_is_refused_with_the_reason() {
    let rig = Rig::new();
    let sliding = SlidingWindow::new(10, Span::from_secs(60), 10).unwrap();
    let refused = rig.try_node(sliding.into(), batch(1)).unwrap_err();
    assert!(refused.to_string().contains("strict or cached-deny"), "{refused}");
    let short: Builtin = Window::fixed(10, Span::from_ms(199)).unwrap().into();
    let refused = rig.try_node(short, batch(1)).unwrap_err();
    let (given, min) = (Span::from_ms(199), Span::from_ms(200));
    assert_eq!(refused, InvalidLeasing::TooShort { given, min });
    assert_eq!(rig.try_node(window(1, 1), batch(0)).unwrap_err(), InvalidLeasing::NoBatch);
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_there_is_room_for_ask_one_by_one() {
    let rig = Rig::new();
    let node = rig.node(window(10, 60), Leasing { max_keys: 4, ..batch(5) });
    for key in 0..20_u8 {
        for _ in 0..10 {
            assert!(check(&node, &[key]).await.decision.is_admit());
        }
        assert!(!check(&node, &[key]).await.decision.is_admit());
    }
    assert!(node.stats().strict > 0 || rig.leases() > 8, "places are reused or strict");
}

/// Threads that race on a few keys, which take each other's place: no key passes more than its
/// limit, and a limit that is asked for often enough passes whole.
#[test]
fn racing_threads_spend_what_was_granted_and_no_more() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_time().build().unwrap();
    let (node, keys) = runtime.block_on(async {
        let memory = Arc::new(Memory::new(admittance::PreciseClock::new()));
        let guard = Arc::new(Guarded::start(memory, GuardSettings::default()));
        // A day, so that no window ends meanwhile.
        let shared = SharedLimiter::new("api", window(5_000, 86_400), guard, FailMode::Closed);
        let leasing = Leasing { max_keys: 3, low_water: 3, ..batch(7) };
        (Arc::new(TwoTier::leased(shared.unwrap(), leasing).unwrap()), 6_u64)
    });
    let admitted: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (node, admitted, runtime) = (&node, &admitted, &runtime);
            scope.spawn(move || {
                for turn in 0..20_000_u64 {
                    let key = (turn * 7 + thread) % keys;
                    let name = key.to_le_bytes();
                    let spent = node.spend(&name, Cost::ONE);
                    let decided = spent
                        .unwrap_or_else(|| runtime.block_on(node.check(&name, Cost::ONE)).unwrap());
                    if decided.decision.is_admit() {
                        admitted[usize::try_from(key).unwrap()].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    for (key, admitted) in admitted.iter().enumerate() {
        assert_eq!(admitted.load(Ordering::Relaxed), 5_000, "key {key}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_every_lease_that_is_held_is_spent() {
    let rig = Rig::new();
    let node = rig.node(window(1_000, 60), Leasing { low_water: 5, ..batch(10) });
    while node.stats().granted < 20 {
        assert!(check(&node, b"ann").await.decision.is_admit());
        sleep(Duration::from_millis(1)).await;
    }
    // Two leases are held, of which requests see one. The store is lost before it is empty.
    rig.replies_after(Duration::from_secs(3_600));
    for other in 0..=u8::MAX {
        let _ = check(&node, &[other]).await;
    }
    assert!(node.shared().store().outage().is_some());
    let mut spent = 0;
    while check(&node, b"ann").await.source == Source::Node {
        spent += 1;
    }
    assert_eq!(spent, 15, "five of the first lease and ten of the second");
}

#[tokio::test(start_paused = true)]
async fn a_low_water_that_no_number_of_leases_reaches_does_not_ask_for_ever() {
    let rig = Rig::new();
    let node = rig.node(window(100_000, 60), Leasing { low_water: 10_000, ..batch(10) });
    for _ in 0..1_000 {
        assert!(check(&node, b"ann").await.decision.is_admit());
        sleep(Duration::from_micros(10)).await;
    }
    let given_back = rig.counts.given_back.load(Ordering::SeqCst);
    assert_eq!(given_back, 0, "asked for more than there is room for, {given_back} times");
    assert!(rig.leases() <= 120, "{} asks", rig.leases());
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_limit_is_never_whatever_denial_is_remembered() {
    let rig = Rig::new();
    let shared = rig.shared(window(1, 60), FailMode::Closed);
    let tier = TwoTier::cached_deny_on(shared, 100, node_time(1));
    assert!(check(&tier, b"ann").await.decision.is_admit());
    assert!(!check(&tier, b"ann").await.decision.is_admit());
    let two = tier.check(b"ann", cost(2)).await.unwrap();
    assert_eq!(two.decision.outcome, admittance::Outcome::Deny(admittance::Retry::Never));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_waited_for_by_a_few_tasks() {
    let rig = Rig::new();
    let gcra = Gcra { limit: 1_000, period: Span::from_secs(1), burst: 1_000 };
    let leasing = Leasing { lease_time: Some(Span::from_ms(200)), ..batch(10) };
    let node = rig.node(Tat::gcra(gcra).unwrap().into(), leasing);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..1_000 {
        rig.replies_after(Duration::from_secs(3_600));
        assert_eq!(check(&node, b"ann").await.source, Source::FailMode);
        // Other asks are answered, so that the breaker stays closed.
        rig.store.serves();
        for other in 0..4 {
            let _ = node.shared().check(&[other], Cost::ONE).await.unwrap();
        }
    }
    assert!(rig.leases() > 10, "{} asks", rig.leases());
    assert!(tasks() - before <= admittance::lease::ATTEMPTS_MAX, "{} tasks", tasks() - before);
}
