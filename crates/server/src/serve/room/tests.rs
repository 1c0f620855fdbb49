use std::task::Waker;

use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};

use super::*;

fn peer() -> Peer {
    Peer::new(([127, 0, 0, 1], 1).into(), None)
}

fn held() -> (Arc<Room>, Arc<Held>) {
    let room = Arc::new(Room::default());
    let held = Held::new(peer(), &room, None);
    (room, held)
}

#[test]
fn whoever_holds_little_is_not_refused_and_nobody_holds_more_than_its_part() {
    let (room, first) = held();
    let fill = |call: &Call| {
        for step in [1 << 20, 1 << 10, 1] {
            while call.grow(step).is_ok() {}
        }
    };
    // One connection cannot take it all.
    let call = first.call(&Request::new(())).expect("room");
    fill(&call);
    assert_eq!(first.own.load(Ordering::Relaxed), OWN_MAX);
    let mut calls = vec![call];
    // Many can, and then a new one still has its own.
    let others: Vec<_> = (0..ROOM / OWN_MAX).map(|_| Held::new(peer(), &room, None)).collect();
    for other in &others {
        let call = other.refused();
        fill(&call);
        calls.push(call);
    }
    let most = ROOM + (others.len() + 1) * OWN_MIN;
    assert!((ROOM..=most).contains(&room.taken.load(Ordering::Relaxed)));
    let late = Held::new(peer(), &room, None);
    let small: Vec<_> = (0..16).map(|_| late.call(&Request::new(()))).collect();
    assert!(small.iter().all(Result::is_ok));
    assert_eq!(late.call(&Request::new(())).map(|_| ()), Err(NoRoom));
    // Everything comes back.
    drop((calls, small));
    assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    assert!(late.call(&Request::new(())).is_ok());
}

#[test]
fn one_network_has_half_of_the_room_and_the_others_the_other_half() {
    let room = Arc::new(Room::default());
    let fill = |share: &Arc<Share>| -> Vec<_> {
        let connected = |_| Held::new(peer(), &room, Some(Arc::clone(share)));
        let all: Vec<_> = (0..ROOM / OWN_MAX).map(connected).collect();
        let calls = all.iter().map(Held::refused);
        calls.inspect(|call| while call.grow(1 << 20).is_ok() {}).collect()
    };
    let (greedy, other) = (Arc::<Share>::default(), Arc::<Share>::default());
    let held = fill(&greedy);
    assert_eq!(greedy.taken.load(Ordering::Relaxed), SHARE_MAX);
    let late = Held::new(peer(), &room, Some(Arc::clone(&greedy)));
    assert!(late.take(OWN_MIN).is_ok() && late.take(1).is_err(), "its own, and no more");
    late.give_back(OWN_MIN);
    let others = fill(&other);
    assert_eq!(other.taken.load(Ordering::Relaxed), SHARE_MAX);
    assert_eq!(room.taken.load(Ordering::Relaxed), ROOM);
    drop((held, others));
    let taken = [&room.taken, &greedy.taken, &other.taken];
    assert_eq!(taken.map(|taken| taken.load(Ordering::Relaxed)), [0; 3]);
}

#[test]
fn an_answer_that_goes_on_is_not_charged_for_its_request() {
    let (room, held) = held();
    let taken = || room.taken.load(Ordering::Relaxed);
    for request in [0, 1, 1 << 20] {
        let call = held.call(&Request::new(())).expect("room");
        call.grow(request).expect("room");
        assert_eq!(taken(), CALL_BYTES + request);
        call.goes_on();
        assert_eq!(taken(), CALL_BYTES);
        call.goes_on();
        assert_eq!(taken(), CALL_BYTES, "once");
        drop(call);
        assert_eq!(taken(), 0);
    }
}

#[test]
fn a_long_answer_is_charged_for_as_far_as_its_request_was_not() {
    let (room, held) = held();
    let call = held.call(&Request::new(())).expect("room");
    let long = u64::try_from(OWN_MAX).expect("small");
    for (answer, taken) in [(0, CALL_BYTES), (100, CALL_BYTES), (1 << 20, 1 << 20)] {
        assert_eq!(call.fits(answer), Ok(()));
        assert_eq!(room.taken.load(Ordering::Relaxed), taken);
    }
    assert_eq!(call.fits(long + 1), Err(NoRoom));
    assert_eq!(call.fits(u64::MAX), Err(NoRoom));
    assert_eq!(call.fits(long), Ok(()), "what was refused is not held");
    drop(call);
    assert_eq!(room.taken.load(Ordering::Relaxed), 0);
}

#[test]
fn a_body_is_charged_for_what_becomes_of_it() {
    assert_eq!(charge(0), 0);
    assert_eq!(charge(100), 7_600);
    assert_eq!(charge(20_000), 20_000 + GROWTH_MAX);
    assert_eq!(charge(usize::MAX), usize::MAX);
}

/// Whether a law of ticks finds what it must and nothing else, in every order of up to eight
/// events: an answer begins to wait, one is taken, a stretch ends.
fn finds_stalls(tick: fn(&Owed) -> bool) -> bool {
    let runs = 3_u32.pow(8);
    (0..runs).all(|mut run| {
        let (owed, mut waiting) = (Owed::default(), Vec::new());
        for _ in 0..8 {
            let event = run % 3;
            run /= 3;
            match event {
                0 => waiting.push((owed.enter(), 0)),
                1 => waiting.pop().map_or((), |(since, _)| owed.leave(since)),
                _ => {
                    waiting.iter_mut().for_each(|(_, ticks)| *ticks += 1);
                    // Its second tick comes a whole stretch or more after it began.
                    let is_stalled = waiting.iter().any(|(_, ticks)| *ticks >= 2);
                    if tick(&owed) != is_stalled {
                        return false;
                    }
                    if is_stalled {
                        break;
                    }
                }
            }
        }
        true
    })
}

#[test]
fn an_answer_that_is_not_taken_is_found_at_its_second_tick() {
    assert!(finds_stalls(Owed::tick));
}

#[test]
fn a_tick_that_looks_at_the_wrong_stretch_is_caught() {
    assert!(!finds_stalls(|owed| {
        let now = Owed::place(owed.stretch.load(Ordering::Relaxed));
        owed.tick();
        owed.waiting[now].load(Ordering::Relaxed) > 0
    }));
    assert!(!finds_stalls(|owed| {
        // Never goes on to the next.
        owed.waiting[2].load(Ordering::Relaxed) > 0
    }));
}

#[tokio::test]
async fn a_long_answer_is_given_out_in_pieces_of_which_the_last_is_short() {
    let (_, held) = held();
    for length in [0, 1, LAST_MAX, LAST_MAX + 1, PIECE_MAX, PIECE_MAX + LAST_MAX + 1, 500_000] {
        let whole: Bytes = (0..=255).cycle().take(length).collect::<Vec<u8>>().into();
        let full = Full::new(whole.clone()).map_err(|never| match never {});
        let mut answer = Answer::new(Body::new(full), held.refused());
        let mut pieces: Vec<Bytes> = Vec::new();
        loop {
            let left = length - pieces.iter().map(Bytes::len).sum::<usize>();
            let left = u64::try_from(left).expect("small");
            assert_eq!(answer.size_hint().exact(), Some(left));
            let Some(frame) = answer.frame().await else { break };
            pieces.push(frame.expect("no error").into_data().expect("data"));
        }
        assert!(answer.is_end_stream());
        assert_eq!(pieces.concat(), whole);
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_MAX));
        assert!(pieces.last().is_none_or(|last| last.len() <= LAST_MAX));
    }
}

#[test]
fn only_what_was_said_and_not_taken_is_owed() {
    let (_, held) = held();
    let waiting = || held.owed.waiting.iter().map(|it| it.load(Ordering::Relaxed)).sum::<u32>();
    let mut context = Context::from_waker(Waker::noop());
    let said = Body::new(Full::new(Bytes::from_static(b"x")).map_err(|never| match never {}));
    let mut answer = Answer::new(said, held.refused());
    assert_eq!(waiting(), 1, "it has begun");
    assert!(Pin::new(&mut answer).poll_frame(&mut context).is_ready());
    assert_eq!(waiting(), 1, "said");
    assert!(Pin::new(&mut answer).poll_frame(&mut context).is_ready());
    assert_eq!(waiting(), 0, "taken");
    // A stream that has nothing to say.
    let silent = http_body_util::StreamBody::new(tokio_stream::pending::<Result<_, Status>>());
    let mut answer = Answer::new(Body::new(silent), held.refused());
    assert!(Pin::new(&mut answer).poll_frame(&mut context).is_pending());
    assert_eq!(waiting(), 0, "nothing is owed");
    // One that may be left untaken.
    let said = Body::new(Full::new(Bytes::from_static(b"x")).map_err(|never| match never {}));
    let mut answer = Answer::watch(said, held.refused());
    assert!(Pin::new(&mut answer).poll_frame(&mut context).is_ready());
    assert_eq!(waiting(), 0, "said, and not owed");
    drop(answer);
    // One that is given up.
    drop(Answer::new(Body::empty(), held.refused()));
    assert_eq!(waiting(), 0, "given up");
}
