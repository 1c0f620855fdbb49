//! Five lines to a first limit: five an hour for each user.
//!
//! `cargo run -p admittance --example first_limit`

use admittance::{Gcra, Invalid, Limiter, Span, Tat};

fn main() -> Result<(), Invalid> {
    let five_an_hour = Gcra { limit: 5, period: Span::from_secs(3_600), burst: 5 };
    let limiter = Limiter::new(Tat::gcra(five_an_hour)?);
    for request in 1..=6 {
        let decision = limiter.check("user-42");
        println!("request {request}: {:?}, {} left", decision.outcome, decision.remaining);
        assert_eq!(decision.is_admit(), request <= 5);
    }
    assert!(limiter.check("user-43").is_admit(), "each key has its own limit");
    Ok(())
}
