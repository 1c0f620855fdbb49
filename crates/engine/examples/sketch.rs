//! A limit for every address on the internet, in memory that is known beforehand.
//!
//! `cargo run -p admittance --example sketch`

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr};

use admittance::{ManualClock, SketchLimiter, SketchSize, Span, Window};

fn main() -> Result<(), Box<dyn Error>> {
    // At most 1,000 a day for each address. An estimate is above the truth by more than a
    // thousandth of everything that is asked for in 1 case of 400 or fewer.
    let size = SketchSize::Accuracy { epsilon_ppm: 1_000, delta_ppm: 2_500 };
    let day = Window::fixed(1_000, Span::from_secs(86_400))?;
    // `SketchLimiter::new(day, size)` has the system's clock; this one lets no midnight interfere.
    let limiter = SketchLimiter::builder(day, size).clock(ManualClock::default()).build()?;
    let (rows, columns) = (limiter.rows(), limiter.columns());
    println!("{rows} rows of {columns} counters, {} bytes", limiter.bytes());

    let address = |number: u128| IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | number));
    let admitted = (0..100_000).filter(|&number| limiter.check(address(number)).is_admit()).count();
    println!("{admitted} of 100000 addresses admitted once");
    assert_eq!(admitted, 100_000, "their shares of each other's counters are far below the limit");

    let one = address(u128::MAX >> 96);
    let passed = (0..2_000).filter(|_| limiter.check(one).is_admit()).count();
    println!("one more address: {passed} of 2000");
    assert!(passed <= 1_000, "never more than the limit");
    assert!(passed >= 800, "and not much less: a tenth of the limit is a thousandth of all");
    assert_eq!(limiter.bytes(), rows * columns * 8, "memory is what it was");
    Ok(())
}
