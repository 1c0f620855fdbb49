//! Your own code under test, with a clock that moves when told.
//!
//! `cargo run -p admittance --example manual_clock`

use admittance::{Clock, Invalid, Limiter, ManualClock, Micros, Span, SystemClock, Window};

/// Code of yours: sends each customer at most two reminders a day.
struct Reminders<C = SystemClock> {
    per_customer: Limiter<admittance::Builtin, C>,
    sent: u32,
}

impl<C: Clock> Reminders<C> {
    fn new(clock: C) -> Result<Self, Invalid> {
        let two_a_day = Window::fixed(2, Span::from_secs(86_400))?;
        Ok(Self { per_customer: Limiter::builder(two_a_day).clock(clock).build(), sent: 0 })
    }

    fn remind(&mut self, customer: &str) {
        if self.per_customer.check(customer).is_admit() {
            self.sent += 1;
        }
    }
}

fn main() -> Result<(), Invalid> {
    let clock = ManualClock::at(Micros::ZERO);
    let mut reminders = Reminders::new(clock.clone())?;
    for _ in 0..3 {
        reminders.remind("ann");
    }
    assert_eq!(reminders.sent, 2);

    clock.advance(Span::from_us(86_400_000_000 - 1));
    reminders.remind("ann");
    assert_eq!(reminders.sent, 2, "the day has one more microsecond");

    clock.advance(Span::TICK);
    reminders.remind("ann");
    assert_eq!(reminders.sent, 3, "tomorrow came without anybody waiting for it");

    clock.set(Micros::ZERO);
    reminders.remind("ann");
    reminders.remind("ann");
    assert_eq!(reminders.sent, 4, "a clock that steps back opens no second yesterday");
    println!("{} reminders in two days", reminders.sent);

    // In production the same code runs on the system's clock.
    let _ = Reminders::new(SystemClock::new())?;
    Ok(())
}
