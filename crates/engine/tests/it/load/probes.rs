//! Probes: bounded, found once, counted by their age while they are under way.

use admittance::load::UNFINISHED_MAX;

use super::*;

/// Something that sends probes into an executor which never runs any, and says how many are there.
fn unfinished(mut step: impl FnMut(), executor: &Held, clock: &ManualClock) -> usize {
    for _ in 0..1_000 {
        step();
        clock.advance(Span::from_ms(10));
    }
    executor.len()
}

#[test]
fn at_most_sixteen_probes_of_a_path_are_under_way() {
    let (clock, executor) = (start(), Held::default());
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &executor);
    assert_eq!(unfinished(|| _ = driver.step(), &executor, &clock), 2 * UNFINISHED_MAX);
    assert_eq!(shedder.status().probes_sent, 2 * UNFINISHED_MAX as u64);
    // One that sends whatever is under way: a driver made anew has forgotten them.
    let (clock, executor) = (start(), Held::default());
    let shedder = super::shedder(&clock);
    let forgetful = || _ = drive(&shedder, &clock, &executor).step();
    assert!(unfinished(forgetful, &executor, &clock) > 2 * UNFINISHED_MAX);
}

#[test]
fn a_stuck_executor_is_seen_by_the_age_of_its_probes_and_recovers() {
    let (shedder, clock, executor, mut driver) = behind(10);
    let after_a_second = shedder.percent();
    assert!(after_a_second < 60, "{after_a_second}");
    pass(&mut driver, &clock, Span::from_secs(20));
    assert_eq!(shedder.percent(), 1, "the floor");
    assert!(shedder.status().average > Span::from_secs(1));
    let stuck = shedder.status();
    assert_eq!(stuck.probes_finished, 0);
    executor.run_all();
    let mut levels = Vec::new();
    for _ in 0..300 {
        pass(&mut driver, &clock, Span::from_ms(50));
        executor.run_all();
        levels.push(shedder.percent());
    }
    // The probes that come back late say so once.
    assert!(levels.is_sorted(), "{levels:?}");
    assert_eq!(levels[299], 100, "back within fifteen seconds: {levels:?}");
}

#[test]
fn a_probe_that_its_executor_drops_is_lost_and_not_under_way() {
    let (clock, executor) = (start(), Held::default());
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &executor);
    for _ in 0..1_000 {
        driver.step();
        offer(&shedder);
        executor.drop_all();
        clock.advance(Span::from_ms(10));
    }
    driver.step();
    let status = shedder.status();
    assert_eq!((status.probes_finished, status.percent), (0, 100), "they say nothing of a wait");
    let under_way = executor.len() as u64;
    assert_eq!(status.probes_lost + under_way, status.probes_sent);
    assert!(status.probes_lost > 100);
}

#[test]
fn every_probe_is_found_once_also_those_that_the_end_overtakes() {
    let (shedder, clock, executor, mut driver) = behind(3);
    let first = executor.queue.lock().unwrap().pop_front().unwrap();
    let second = executor.queue.lock().unwrap().pop_front().unwrap();
    first.1.run();
    drop(second);
    pass(&mut driver, &clock, Span::from_ms(10));
    let (sent, under_way) = (shedder.status().probes_sent, executor.len() as u64);
    let found = |status: admittance::load::Status| (status.probes_finished, status.probes_lost);
    assert_eq!(found(shedder.status()), (1, 1));
    assert_eq!(sent, under_way + 2);
    // Found though nobody steps any more.
    executor.queue.lock().unwrap().pop_front().unwrap().1.run();
    drop(driver);
    assert_eq!(found(shedder.status()), (2, sent - 2));
    executor.run_all();
    assert_eq!(
        found(shedder.status()),
        (2, sent - 2),
        "what comes after the end is of no interest"
    );
}

#[test]
fn a_probe_that_had_to_travel_counts_from_where_its_path_begins() {
    let (clock, executor) = (start(), Held::default());
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &executor);
    // A second to the beginning of the path, and none from there.
    for _ in 0..100 {
        driver.step();
        let mut taken = std::mem::take(&mut *executor.queue.lock().unwrap());
        clock.advance(Span::from_secs(1));
        taken.iter_mut().for_each(|(_, probe)| probe.sent_again());
        driver.step();
        taken.into_iter().for_each(|(_, probe)| probe.run());
    }
    assert_eq!((shedder.percent(), shedder.status().average), (100, Span::ZERO));
}

#[test]
fn while_nothing_is_wrong_a_path_is_probed_once_in_an_interval() {
    let clock = start();
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &Held { is_quick: true, ..Held::default() });
    for _ in 0..100 {
        offer(&shedder);
        pass(&mut driver, &clock, interval());
    }
    let status = shedder.status();
    assert_eq!((status.adjustments, status.probes_sent), (100, 2 * 101));
    assert_eq!((status.percent, status.moves), (100, 0));
    // And where nobody asks, in every fifth.
    pass(&mut driver, &clock, Span::from_secs(10));
    assert_eq!(shedder.status().since(&status).probes_sent, 2 * 20);
}

#[test]
fn steps_that_come_early_do_nothing_and_late_ones_what_is_due_once() {
    let clock = start();
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &Held { is_quick: true, ..Held::default() });
    let next_ns = driver.step();
    for _ in 0..1_000 {
        assert_eq!(driver.step(), next_ns);
    }
    assert_eq!(shedder.status().probes_sent, 2);
    clock.advance(Span::from_secs(100));
    assert_eq!(driver.step(), clock.now().epoch_us() * 1_000 + 100_000_000);
    assert_eq!((shedder.status().probes_sent, shedder.status().adjustments), (4, 1));
}
