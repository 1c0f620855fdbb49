//! What needs to see the machine.

use super::machine::{count_forks, generation, since_boot};

#[test]
fn time_since_boot_goes_on() {
    let before = since_boot();
    assert!(before.epoch_us() > 0);
    assert!(before <= since_boot());
}

#[test]
fn forks_are_counted_once() {
    count_forks();
    count_forks();
    assert_eq!(generation(), generation());
}
