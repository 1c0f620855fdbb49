//! A ceiling divided among classes with guaranteed percentages.
//!
//! Each class has places of its own, and what no class is guaranteed is there for all. The ceiling
//! changes with every sample, so the parts must follow it without a moment in which they sum to
//! more; and two ceilings are divided here, a limit and a share, of which the lower binds.
//!
//! # Guarantee
//! - The parts sum to the whole, exactly.
//! - A class gets at least ⌊whole × percentage / 100⌋. Below 100 / percentage places that is none:
//!   then the class lives on the part that is there for all. If nothing is, because the
//!   percentages sum to 100, the largest classes come first.
//! - A larger whole makes no part smaller. So the parts of the lower of two ceilings are the lower
//!   of their parts, place by place, and a class that holds more than its part for a while never
//!   held more than its part of the largest ceiling since.
//!
//! Whoever rounds each part on its own, or gives what is left to the largest remainders, keeps the
//! first two and loses the third.
//!
//! # Proven by
//! The tests below, over all small wholes, with both of those as mutants.

use crate::{Invalid, Parameter};

/// The percentages that classes are guaranteed.
///
/// # Example
/// ```
/// use admittance_core::concurrency::Partition;
///
/// let partition = Partition::new(&[50, 20])?;
/// let parts = partition.parts(10);
/// assert_eq!((parts.of(0), parts.of(1), parts.rest()), (5, 2, 3));
/// # Ok::<(), admittance_core::Invalid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// The classes' percentages, and after them the rest's.
    weights: [u32; CLASSES_MAX + 1],
    classes: usize,
}

/// A whole, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    parts: [u32; CLASSES_MAX + 1],
    classes: usize,
}

impl Partition {
    /// Classes with these guaranteed percentages, numbered as they come. A class with none lives
    /// on the rest alone.
    ///
    /// # Errors
    /// More than [`CLASSES_MAX`] classes, or percentages that sum to more than 100.
    pub fn new(percentages: &[u32]) -> Result<Self, Invalid> {
        let (given, parameter) = (percentages.len(), Parameter::Guaranteed);
        if given > CLASSES_MAX {
            return Err(Invalid::TooMany { parameter, given, max: CLASSES_MAX });
        }
        let sum: u64 = percentages.iter().copied().map(u64::from).sum();
        let rest = u32::try_from(sum).ok().and_then(|sum| WHOLE.checked_sub(sum));
        let rest = rest.ok_or(Invalid::Unfit { parameter, must: "sum to 100 at most" })?;
        let mut weights = [0; CLASSES_MAX + 1];
        weights[..given].copy_from_slice(percentages);
        weights[given] = rest;
        Ok(Self { weights, classes: given })
    }

    /// How many classes there are.
    #[must_use]
    pub const fn classes(&self) -> usize {
        self.classes
    }

    /// Divides so many places, by highest averages: each next place goes to whoever has the most
    /// weight per place with it. That never takes back what fewer places gave.
    #[must_use]
    pub fn parts(&self, whole: u32) -> Parts {
        let mut parts = [0; CLASSES_MAX + 1];
        let mut left = whole;
        let weights = &self.weights[..=self.classes];
        // Everybody ends with at least the whole places of their percentage: start from there.
        for (part, &weight) in parts.iter_mut().zip(weights) {
            *part = floor(whole, weight);
            left -= *part;
        }
        // Fewer are left than there are parts.
        for _ in 0..left {
            let mut best = 0;
            for (at, &weight) in weights.iter().enumerate() {
                let average =
                    |at: usize, weight: u32| (u64::from(weight), u64::from(parts[at]) + 1);
                let (mine, theirs) = (average(at, weight), average(best, weights[best]));
                // mine.0 / mine.1 > theirs.0 / theirs.1; whoever comes first wins a tie.
                if mine.0 * theirs.1 > theirs.0 * mine.1 {
                    best = at;
                }
            }
            parts[best] += 1;
        }
        Parts { parts, classes: self.classes }
    }
}

impl Parts {
    /// The places of one class; none if there is no such class.
    #[must_use]
    pub fn of(&self, class: usize) -> u32 {
        self.parts[..self.classes].get(class).copied().unwrap_or(0)
    }

    /// The places that are there for all.
    #[must_use]
    pub fn rest(&self) -> u32 {
        self.parts[self.classes]
    }
}

/// ⌊whole × weight / 100⌋, which is at most the whole.
fn floor(whole: u32, weight: u32) -> u32 {
    let part = u64::from(whole) * u64::from(weight) / u64::from(WHOLE);
    u32::try_from(part).unwrap_or(whole)
}

/// A hundred percent.
const WHOLE: u32 = 100;

/// The most classes of one partition.
pub const CLASSES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::concurrency::PERMITS_MAX;

    const SHAPES: [&[u32]; 9] = [
        &[],
        &[0],
        &[100],
        &[50, 50],
        &[33, 33, 33],
        &[90, 1, 1],
        &[7, 13, 29, 41],
        &[25, 25, 25, 25],
        &[6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6],
    ];

    /// The classes' parts, and the rest last.
    type Divide = fn(&Partition, u32) -> Vec<u32>;

    fn shipped(partition: &Partition, whole: u32) -> Vec<u32> {
        let parts = partition.parts(whole);
        (0..partition.classes).map(|class| parts.of(class)).chain([parts.rest()]).collect()
    }

    /// Mutant: each class rounded down, and the rest gets what is left.
    fn rounded_down(partition: &Partition, whole: u32) -> Vec<u32> {
        let classes = partition.weights[..partition.classes].iter();
        let mut parts: Vec<u32> = classes.map(|&weight| floor(whole, weight)).collect();
        parts.push(whole - parts.iter().sum::<u32>());
        parts
    }

    /// Mutant: rounded down, and what is left goes to the largest remainders.
    fn largest_remainders(partition: &Partition, whole: u32) -> Vec<u32> {
        let weights = &partition.weights[..=partition.classes];
        let mut parts: Vec<u32> = weights.iter().map(|&weight| floor(whole, weight)).collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(whole * weights[at] % WHOLE));
        let left = whole - parts.iter().sum::<u32>();
        for &at in order.iter().cycle().take(left as usize) {
            parts[at] += 1;
        }
        parts
    }

    /// What is wrong with a division of every whole up to 600, if something is.
    fn flaw(divide: Divide) -> Option<&'static str> {
        for shape in SHAPES {
            let partition = Partition::new(shape).unwrap();
            let mut before = vec![0; shape.len() + 1];
            for whole in 0..600 {
                let parts = divide(&partition, whole);
                if parts.iter().sum::<u32>() != whole {
                    return Some("the parts do not sum to the whole");
                }
                let guaranteed = |(&part, &weight): (&u32, &u32)| part >= floor(whole, weight);
                if !parts.iter().zip(&partition.weights).all(guaranteed) {
                    return Some("a class has less than it is guaranteed");
                }
                if parts.iter().zip(&before).any(|(now, before)| now < before) {
                    return Some("a larger whole made a part smaller");
                }
                before = parts;
            }
        }
        None
    }

    #[test]
    fn parts_sum_to_the_whole_hold_the_percentages_and_only_grow() {
        assert_eq!(flaw(shipped), None);
        for mutant in [rounded_down as Divide, largest_remainders] {
            assert_eq!(flaw(mutant), Some("a larger whole made a part smaller"));
        }
    }

    #[test]
    fn the_parts_of_the_lower_ceiling_are_the_lower_parts() {
        for shape in SHAPES {
            let partition = Partition::new(shape).unwrap();
            for (limit, share) in [(7, 30), (30, 7), (99, 100), (512, 511), (5, PERMITS_MAX)] {
                let (limits, shares) = (shipped(&partition, limit), shipped(&partition, share));
                let lower: Vec<u32> =
                    limits.iter().zip(shares).map(|(&one, other)| one.min(other)).collect();
                assert_eq!(lower, shipped(&partition, limit.min(share)));
            }
        }
    }

    #[test]
    fn a_partition_of_more_than_everything_is_refused() {
        let parameter = Parameter::Guaranteed;
        let unfit = Invalid::Unfit { parameter, must: "sum to 100 at most" };
        assert_eq!(Partition::new(&[60, 41]), Err(unfit));
        let many = Invalid::TooMany { parameter, given: 17, max: 16 };
        assert_eq!(Partition::new(&[0; 17]), Err(many));
        assert!(Partition::new(&[u32::MAX, u32::MAX]).is_err());
    }

    #[test]
    fn the_largest_whole_is_divided_too() {
        for shape in SHAPES {
            let partition = Partition::new(shape).unwrap();
            let parts = shipped(&partition, PERMITS_MAX);
            assert_eq!(parts.iter().sum::<u32>(), PERMITS_MAX);
        }
    }
}
