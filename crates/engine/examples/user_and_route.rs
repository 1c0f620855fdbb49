//! A limit per user and one per route, decided together: both are charged, or neither.
//!
//! `cargo run -p admittance --example user_and_route`

use admittance::{Cost, Gcra, Invalid, Limiter, Several, Span, Tat, all};

/// The limits of one service.
struct Limits {
    users: Limiter,
    routes: Limiter,
}

impl Limits {
    fn check(&self, user: &str, route: &str) -> Several {
        all(&[self.users.ask(user, Cost::ONE), self.routes.ask(route, Cost::ONE)])
    }
}

fn main() -> Result<(), Invalid> {
    let an_hour = |limit| Tat::gcra(Gcra { limit, period: Span::from_secs(3_600), burst: limit });
    let limits = Limits { users: Limiter::new(an_hour(2)?), routes: Limiter::new(an_hour(3)?) };
    assert!(limits.check("ann", "/search").decision.is_admit());
    assert!(limits.check("ann", "/search").decision.is_admit());

    let ann = limits.check("ann", "/search");
    println!("ann: {:?}, because of limit {:?}", ann.decision.outcome, ann.binding);
    assert_eq!(ann.binding, Some(0), "the user's limit is the one that bound");
    assert_eq!(limits.routes.peek("/search").remaining, 1, "the route was not charged for it");

    assert!(limits.check("ben", "/search").decision.is_admit());
    let ben = limits.check("ben", "/search");
    println!("ben: {:?}, because of limit {:?}", ben.decision.outcome, ben.binding);
    assert_eq!(ben.binding, Some(1), "now the route's limit binds");
    assert_eq!(limits.users.peek("ben").remaining, 1, "and ben was not charged for it");
    Ok(())
}
