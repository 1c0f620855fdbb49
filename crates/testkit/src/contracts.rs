//! The contracts that one caller after another can check. Each runs over every kind of strategy.

use admittance::{Answer, BuiltinState, Decision, Outcome, Retry, Span, Strategy};

use crate::trial::{LIMIT, START, Trial, cost, strategies};
use crate::{Contract, Fact, Harness, Violation};

/// What was charged stays charged.
///
/// # Errors
/// The violation.
pub async fn persists<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::Persists, strategy).await;
        let mut state = None;
        for units in [3, 1, 2, 4] {
            let step = strategy.step(state.take(), START, cost(units));
            let given = trial.check(b"key", units).await?;
            trial.answered(START, Answer::Decision(step.decision), Answer::Decision(given))?;
            state = step.state;
        }
        trial.counted(START, 0, trial.drain(b"key").await?)?;
    }
    Ok(())
}

/// One key's charges are not another's, however alike the two are.
///
/// # Errors
/// The violation.
pub async fn isolates_keys<H: Harness>(harness: &H) -> Result<(), Violation> {
    let long = [b'k'; 4_096];
    let longer = [b'k'; 4_097];
    let keys: [&[u8]; 16] = [
        b"key",
        b"Key",
        b"key ",
        b" key",
        b"key\0",
        b"\0key",
        b"",
        b"\0",
        b"key:",
        b"{key}",
        b"key}",
        b"k%65y",
        b"\xff\xfe",
        "k\u{eb}y".as_bytes(),
        &long,
        &longer,
    ];
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::IsolatesKeys, strategy).await;
        for key in keys {
            trial.counted(START, LIMIT, trial.drain(key).await?)?;
        }
        for key in keys {
            trial.counted(START, 0, trial.drain(key).await?)?;
        }
    }
    Ok(())
}

/// One policy's charges are not another's, whatever the names and keys put together spell.
///
/// # Errors
/// The violation.
pub async fn isolates_policies<H: Harness>(harness: &H) -> Result<(), Violation> {
    let named: [(&'static str, &[u8]); 6] = [
        ("api", b"v1:ann"),
        ("api:v1", b"ann"),
        ("api:v1:ann", b""),
        ("api:v1:", b"ann"),
        ("API", b"v1:ann"),
        ("{api}", b"v1:ann"),
    ];
    for strategy in strategies() {
        let mut trial = Trial::new(harness, Contract::IsolatesPolicies, strategy).await;
        for expected in [LIMIT, 0] {
            for (policy, key) in named {
                trial.policy = policy;
                trial.counted(START, expected, trial.drain(key).await?)?;
            }
        }
    }
    Ok(())
}

/// A policy whose strategy changed under its name does not meet the state of the one before.
///
/// # Errors
/// The violation.
pub async fn isolates_strategies<H: Harness>(harness: &H) -> Result<(), Violation> {
    let all = strategies();
    let shapes = [0, 4, 5, 6, 7, 8].map(|place| all[place]);
    let mut trial = Trial::new(harness, Contract::IsolatesStrategies, shapes[0]).await;
    for strategy in shapes {
        trial.strategy = strategy;
        trial.counted(START, LIMIT, trial.drain(b"key").await?)?;
        trial.counted(START, 0, trial.drain(b"key").await?)?;
    }
    Ok(())
}

/// A key that was reset is as one never seen, and only that key.
///
/// # Errors
/// The violation.
pub async fn resets<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::Resets, strategy).await;
        for key in [b"one", b"two"] {
            trial.counted(START, LIMIT, trial.drain(key).await?)?;
        }
        for expected in [true, false] {
            let given = trial.reset(b"one").await?;
            trial.answered(START, Answer::Reset(expected), Answer::Reset(given))?;
        }
        trial.counted(START, LIMIT, trial.drain(b"one").await?)?;
        trial.counted(START, 0, trial.drain(b"two").await?)?;
        let given = trial.reset(b"never seen").await?;
        trial.answered(START, Answer::Reset(false), Answer::Reset(given))?;
    }
    Ok(())
}

/// A key is as one never seen from the strategy's `idle_at` on. Until the tick before, what it has
/// spent is remembered, whatever happens to other keys meanwhile.
///
/// # Errors
/// The violation.
pub async fn expires_when_idle_and_not_before<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::Expires, strategy).await;
        trial.counted(START, LIMIT, trial.drain(b"key").await?)?;
        let state = spent(&strategy);
        let idle_at = strategy.idle_at(&state);
        let lifetime = idle_at.since(START).us();
        for tenths in [1, 5, 9, 10] {
            let elapsed = if tenths == 10 { lifetime - 1 } else { lifetime * tenths / 10 };
            let now = START + Span::from_us(elapsed);
            trial.set_clock(now).await;
            // Others come and go: a store that looks for something to forget finds it now.
            for other in 0..200_u32 {
                trial.spend(&[b"other ".as_slice(), &other.to_le_bytes()].concat(), 1).await?;
            }
            let expected = Answer::Decision(strategy.peek(Some(&state), now));
            trial.answered(now, expected, Answer::Decision(trial.peek(b"key").await?))?;
            let given = trial.check(b"key", LIMIT).await?;
            let expected = strategy.ask(Some(&state), now, cost(LIMIT));
            trial.answered(now, Answer::Decision(expected), Answer::Decision(given))?;
        }
        trial.set_clock(idle_at).await;
        let expected = strategy.ask(None, idle_at, cost(LIMIT));
        let given = trial.check(b"key", LIMIT).await?;
        trial.answered(idle_at, Answer::Decision(expected), Answer::Decision(given))?;
    }
    Ok(())
}

/// A denial charges nothing: what it is told changes neither what remains nor when it comes back.
///
/// # Errors
/// The violation.
pub async fn denials_are_free<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::DenialsAreFree, strategy).await;
        // A key that was only ever denied is as one never seen.
        for denied in [LIMIT + 1, LIMIT + 7] {
            refused(&trial, b"new", denied).await?;
        }
        trial.counted(START, LIMIT, trial.drain(b"new").await?)?;
        trial.spend(b"key", LIMIT - 1).await?;
        let before = Answer::Decision(trial.peek(b"key").await?);
        for units in [2, 3, LIMIT, LIMIT + 1, 2, 2] {
            refused(&trial, b"key", units).await?;
        }
        trial.answered(START, before, Answer::Decision(trial.peek(b"key").await?))?;
        trial.counted(START, 1, trial.drain(b"key").await?)?;
        let state = spent(&strategy);
        let later = START + Span::from_us(strategy.idle_at(&state).since(START).us() / 2);
        trial.set_clock(later).await;
        trial.spend(b"key", LIMIT).await?;
        trial.set_clock(strategy.idle_at(&state)).await;
        let given = trial.check(b"key", LIMIT).await?;
        trial.counted(strategy.idle_at(&state), 1, u64::from(given.is_admit()))?;
    }
    Ok(())
}

/// A clock that steps back never admits more than one that had stood still, and a store that has
/// forgotten an idle key does not give its budget twice for it.
///
/// # Errors
/// The violation.
pub async fn steps_back_never_over_admit<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::StepsBack, strategy).await;
        trial.spend(b"half", LIMIT / 2).await?;
        trial.counted(START, LIMIT, trial.drain(b"whole").await?)?;
        let mut half = LIMIT / 2;
        for back in [1, 1_000, SECOND, 3_600 * SECOND, 40 * 86_400 * SECOND, START.epoch_us()] {
            for now in [START - Span::from_us(back), START] {
                trial.set_clock(now).await;
                half += trial.drain(b"half").await?;
                trial.bounded(now, LIMIT, half)?;
                trial.bounded(now, 0, trial.drain(b"whole").await?)?;
            }
        }
        // Idle, perhaps forgotten for the sake of others, and then back again.
        let trial = Trial::new(harness, Contract::StepsBack, strategy).await;
        trial.counted(START, LIMIT, trial.drain(b"key").await?)?;
        let idle_at = strategy.idle_at(&spent(&strategy));
        trial.set_clock(idle_at).await;
        for other in 0..200_u32 {
            trial.spend(&other.to_le_bytes(), 1).await?;
        }
        let mut admitted = 0;
        for now in [START, START - Span::from_us(SECOND), START, idle_at] {
            trial.set_clock(now).await;
            admitted += trial.drain(b"key").await?;
            trial.bounded(now, LIMIT, admitted)?;
        }
    }
    Ok(())
}

/// Waiting exactly the retry admits the same request if nobody else spends; one tick less does not.
///
/// # Errors
/// The violation.
pub async fn retry_is_the_truth<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::RetryIsTrue, strategy).await;
        let (part, tenth) = (LIMIT / 2, Span::from_us(SECOND * 360 + 1));
        for asked in 1..=LIMIT {
            let key = [b'k', u8::try_from(asked).unwrap_or(0)];
            let later = START + tenth;
            trial.set_clock(START).await;
            trial.spend(&key, part).await?;
            trial.set_clock(later).await;
            trial.spend(&key, LIMIT - part).await?;
            let denied = trial.check(&key, asked).await?;
            let Outcome::Deny(Retry::After(wait)) = denied.outcome else { continue };
            for (wait, expected) in [(Span::from_us(wait.us() - 1), 0), (wait, 1)] {
                trial.set_clock(later + wait).await;
                let given = trial.check(&key, asked).await?;
                trial.counted(later + wait, expected, u64::from(given.is_admit()))?;
            }
        }
    }
    Ok(())
}

/// A cost above the limit is told never, not some time, and charges nothing.
///
/// # Errors
/// The violation.
pub async fn never_means_never<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::Never, strategy).await;
        for used in [false, true] {
            if used {
                trial.spend(b"key", 1).await?;
            }
            for units in [LIMIT + 1, 2 * LIMIT, u64::from(u32::MAX), u64::MAX] {
                let given = trial.check(b"key", units).await?;
                let outcome = Outcome::Deny(Retry::Never);
                let expected = Answer::Decision(Decision { outcome, ..given });
                trial.answered(START, expected, Answer::Decision(given))?;
            }
        }
        trial.counted(START, LIMIT - 1, trial.drain(b"key").await?)?;
        let given = trial.check(b"key", LIMIT).await?;
        if given.outcome == Outcome::Deny(Retry::Never) {
            return Err(trial.violated(Fact::WrongKind(Answer::Decision(given))));
        }
    }
    Ok(())
}

/// A peek and a forecast charge nothing, and say what then comes true.
///
/// # Errors
/// The violation.
pub async fn looks_are_free<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::LooksAreFree, strategy).await;
        for (key, charged) in [(b"new", 0), (b"old", 4)] {
            if charged > 0 {
                trial.spend(key, charged).await?;
            }
            let left = LIMIT - charged;
            for _ in 0..LIMIT + 1 {
                let seen = trial.peek(key).await?;
                trial.counted(START, left, seen.remaining)?;
                trial.counted(START, left, trial.forecast(key, 1).await?.spendable_now)?;
                trial.counted(START, left / 3, trial.forecast(key, 3).await?.spendable_now)?;
            }
            trial.counted(START, left, trial.drain(key).await?)?;
            let seen = trial.peek(key).await?;
            trial.counted(START, 0, u64::from(seen.is_admit()) + seen.remaining)?;
        }
    }
    Ok(())
}

async fn refused<H: Harness>(
    trial: &Trial<'_, H>,
    key: &[u8],
    units: u64,
) -> Result<(), Violation> {
    let given = trial.check(key, units).await?;
    trial.counted(START, 0, u64::from(given.is_admit()))
}

/// What a key remembers that spent all of its limit at [`START`], one by one.
fn spent(strategy: &admittance::Builtin) -> BuiltinState {
    let one = |state, _| strategy.step(state, START, cost(1)).state;
    (0..LIMIT).fold(None, one).expect("an admission leaves a state")
}

const SECOND: u64 = 1_000_000;
