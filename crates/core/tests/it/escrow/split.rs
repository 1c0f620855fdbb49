//! The batch water-filling split, in exact rationals: who would get what if everything that is
//! wanted were known at once and could be divided at will.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

fn exact(units: u64) -> BigRational {
    BigRational::from_integer(BigInt::from(units))
}

/// Each tenant's share of `limit`: the level rises for all alike, weighted, and whoever has what it
/// wants drops out.
pub(crate) fn water_filling(limit: u64, tenths: &[u64], wanted: &[u64]) -> Vec<BigRational> {
    let mut shares = vec![BigRational::zero(); wanted.len()];
    let mut thirsty: Vec<usize> = (0..wanted.len()).filter(|&j| wanted[j] > 0).collect();
    let mut left = exact(limit);
    while !thirsty.is_empty() {
        let weights: u64 = thirsty.iter().map(|&j| tenths[j]).sum();
        let level = &left / exact(weights);
        let (sated, still): (Vec<usize>, Vec<usize>) =
            thirsty.iter().partition(|&&j| exact(wanted[j]) <= &level * exact(tenths[j]));
        if sated.is_empty() {
            for j in thirsty {
                shares[j] = &level * exact(tenths[j]);
            }
            break;
        }
        for j in sated {
            shares[j] = exact(wanted[j]);
            left -= exact(wanted[j]);
        }
        thirsty = still;
    }
    shares
}

#[test]
fn the_split_of_the_textbook() {
    let tenth = |tenths: u64| BigRational::new(BigInt::from(tenths), BigInt::from(10));
    let shares = water_filling(100, &[10, 10, 10], &[20, 30, 100]);
    assert_eq!(shares, [tenth(200), tenth(300), tenth(500)]);
    let shares = water_filling(10, &[10, 10, 5], &[9, 2, 9]);
    assert_eq!(shares[1], tenth(20));
    assert_eq!(&shares[0], &(&shares[2] * exact(2)), "two to one, of what the second leaves");
    let shares = water_filling(100, &[10, 20], &[3, 4]);
    assert_eq!(shares, [tenth(30), tenth(40)], "enough for all");
}
