//! Numbers in order, with how many there are below a bound and what they sum to.
//!
//! AA trees in one arena, one root per set, equal numbers in one node. Each node carries the count
//! and the sum of its subtree, so that [`Orders::below`] walks one path. Depth is at most twice the
//! logarithm of the number of nodes, whatever order things come in: there is no luck to run out of.

use alloc::vec::Vec;

/// The root of an empty set.
pub(super) const EMPTY: u32 = 0;

/// Any number of ordered sets that share one arena. A set is known by its root.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    /// The first is the empty tree: level 0, counts nothing, its own child.
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Nodes visited so far, for the test that counts work instead of time.
    #[cfg(test)]
    pub(super) visits: core::cell::Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    value: u64,
    /// How often the value is in the set.
    same: u32,
    level: u8,
    left: u32,
    right: u32,
    /// Of the whole subtree.
    total: Total,
}

/// How many numbers, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) count: u64,
    pub(super) sum: u128,
}

impl Total {
    /// Σ (bound − number) over these numbers, all of which lie below the bound.
    pub(super) fn gap(self, bound: u64) -> u128 {
        u128::from(bound) * u128::from(self.count) - self.sum
    }

    fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, sum: self.sum + other.sum }
    }

    fn minus(self, other: Self) -> Self {
        Self { count: self.count - other.count, sum: self.sum - other.sum }
    }
}

impl Orders {
    pub(super) fn new() -> Self {
        let empty = Node {
            value: 0,
            same: 0,
            level: 0,
            left: EMPTY,
            right: EMPTY,
            total: Total::default(),
        };
        Self {
            nodes: Vec::from([empty]),
            free: Vec::new(),
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
        }
    }

    /// Forgets every set; their roots are [`EMPTY`] from now on.
    pub(super) fn clear(&mut self) {
        self.nodes.truncate(1);
        self.free.clear();
    }

    /// The numbers of the set below the bound.
    pub(super) fn below(&self, root: u32, bound: u64) -> Total {
        let (mut at, mut found) = (root, Total::default());
        while at != EMPTY {
            let node = self.visit(at);
            if node.value < bound {
                let left = self.node(node.left).total;
                found = found.plus(left).plus(node.own());
                at = node.right;
            } else {
                at = node.left;
            }
        }
        found
    }

    /// Adds a number; the set's new root.
    #[must_use]
    pub(super) fn insert(&mut self, root: u32, value: u64) -> u32 {
        if root == EMPTY {
            return self.leaf(value);
        }
        let node = self.visit(root);
        // Sums are changed on the way back, not added up: that would touch nodes beside the path.
        self.at(root).total = node.total.plus(Total { count: 1, sum: value.into() });
        if value < node.value {
            let left = self.insert(node.left, value);
            self.at(root).left = left;
            if self.node(left).level == node.level {
                let root = self.skewed(root);
                return self.split(root);
            }
        } else if value > node.value {
            let right = self.insert(node.right, value);
            self.at(root).right = right;
            if self.node(right).level == node.level {
                return self.split(root);
            }
        } else {
            self.at(root).same += 1;
        }
        root
    }

    /// Takes one such number out; the set's new root. The number must be in the set.
    #[must_use]
    pub(super) fn remove(&mut self, root: u32, value: u64) -> u32 {
        debug_assert!(root != EMPTY, "only what was put in is taken out");
        if root == EMPTY {
            return EMPTY;
        }
        let node = self.visit(root);
        self.at(root).total = node.total.minus(Total { count: 1, sum: value.into() });
        let changed = if value < node.value {
            let left = self.remove(node.left, value);
            self.at(root).left = left;
            left
        } else if value > node.value {
            let right = self.remove(node.right, value);
            self.at(root).right = right;
            right
        } else if node.same > 1 {
            self.at(root).same -= 1;
            return root;
        } else if node.left == EMPTY {
            self.free.push(root);
            return node.right;
        } else {
            let (right, next) = self.without_first(node.right);
            let place = self.at(root);
            (place.right, place.value, place.same) = (right, next.value, next.same);
            right
        };
        self.balanced(root, changed)
    }

    /// The tree without its first node, and that node.
    fn without_first(&mut self, root: u32) -> (u32, Node) {
        let node = self.visit(root);
        if node.left == EMPTY {
            self.free.push(root);
            return (node.right, node);
        }
        let (left, first) = self.without_first(node.left);
        let place = self.at(root);
        (place.left, place.total) = (left, node.total.minus(first.own()));
        (self.balanced(root, left), first)
    }

    fn leaf(&mut self, value: u64) -> u32 {
        let total = Total { count: 1, sum: value.into() };
        let node = Node { value, same: 1, level: 1, left: EMPTY, right: EMPTY, total };
        if let Some(free) = self.free.pop() {
            *self.at(free) = node;
            return free;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("two nodes per tenant, of at most 2^20 tenants")
    }

    /// Restores the levels above a removal in one of the two subtrees, if it has sunk too low.
    fn balanced(&mut self, root: u32, changed: u32) -> u32 {
        let node = self.node(root);
        if self.node(changed).level + 1 >= node.level {
            return root;
        }
        let level = self.node(node.left).level.min(self.node(node.right).level) + 1;
        if level < node.level {
            self.at(root).level = level;
            if node.right != EMPTY && level < self.node(node.right).level {
                self.at(node.right).level = level;
            }
        }
        let root = self.skewed(root);
        self.on_right(root, Self::skewed);
        let right = self.node(root).right;
        self.on_right(right, Self::skewed);
        self.sum_up(right);
        let root = self.split(root);
        self.on_right(root, Self::split);
        self.sum_up(root);
        root
    }

    fn on_right(&mut self, root: u32, turn: impl FnOnce(&mut Self, u32) -> u32) {
        if root != EMPTY {
            let right = self.node(root).right;
            let right = turn(self, right);
            self.at(root).right = right;
        }
    }

    /// Turns a left child of the same level into the parent.
    fn skewed(&mut self, root: u32) -> u32 {
        let node = self.node(root);
        let left = self.node(node.left);
        if root == EMPTY || left.level != node.level {
            self.sum_up(root);
            return root;
        }
        self.at(root).left = left.right;
        self.at(node.left).right = root;
        self.sum_up(root);
        self.sum_up(node.left);
        node.left
    }

    /// Lifts the middle of three nodes of the same level.
    fn split(&mut self, root: u32) -> u32 {
        let node = self.node(root);
        let right = self.node(node.right);
        if root == EMPTY || self.node(right.right).level != node.level {
            self.sum_up(root);
            return root;
        }
        self.at(root).right = right.left;
        let middle = self.at(node.right);
        (middle.left, middle.level) = (root, right.level + 1);
        self.sum_up(root);
        self.sum_up(node.right);
        node.right
    }

    fn sum_up(&mut self, root: u32) {
        if root != EMPTY {
            let node = self.node(root);
            let children = self.node(node.left).total.plus(self.node(node.right).total);
            self.at(root).total = children.plus(node.own());
        }
    }

    fn node(&self, at: u32) -> Node {
        self.nodes[at as usize]
    }

    fn at(&mut self, at: u32) -> &mut Node {
        debug_assert!(at != EMPTY, "the empty tree stays as it is");
        &mut self.nodes[at as usize]
    }

    fn visit(&self, at: u32) -> Node {
        self.count_visit();
        self.node(at)
    }

    /// Counted in tests only.
    pub(super) fn count_visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }
}

impl Node {
    fn own(&self) -> Total {
        let (value, same) = (u128::from(self.value), u64::from(self.same));
        Total { count: same, sum: value * u128::from(same) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The depth, if every rule of the tree holds.
    fn depth(orders: &Orders, root: u32) -> usize {
        if root == EMPTY {
            return 0;
        }
        let node = orders.node(root);
        let (left, right) = (orders.node(node.left), orders.node(node.right));
        assert_eq!(left.level + 1, node.level, "left is one below");
        assert!(right.level == node.level || right.level + 1 == node.level, "right is near");
        assert!(orders.node(right.right).level < node.level, "two of a level, not three");
        assert_eq!(node.total, left.total.plus(right.total).plus(node.own()), "sums are kept");
        1 + depth(orders, node.left).max(depth(orders, node.right))
    }

    #[test]
    fn sets_in_one_arena_count_and_sum_as_a_scan_does() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut orders, mut roots) = (Orders::new(), [EMPTY; 3]);
        let mut scans: [BTreeMap<u64, u32>; 3] = core::array::from_fn(|_| BTreeMap::new());
        for step in 0..40_000_u32 {
            let set = rng.usize(..3);
            let (root, scan) = (&mut roots[set], &mut scans[set]);
            let growing = step % 8_000 < 5_000;
            let known = scan.keys().nth(rng.usize(..scan.len().max(1))).copied();
            if let Some(value) = known.filter(|_| !growing || rng.u8(..4) == 0) {
                *root = orders.remove(*root, value);
                let same = scan.get_mut(&value).expect("known");
                *same -= 1;
                if *same == 0 {
                    scan.remove(&value);
                }
            } else {
                let value = rng.u64(..200);
                *root = orders.insert(*root, value);
                *scan.entry(value).or_default() += 1;
            }
            let bound = rng.u64(..220);
            let mut expected = Total::default();
            for (&value, &same) in scan.range(..bound) {
                expected.count += u64::from(same);
                expected.sum += u128::from(value) * u128::from(same);
            }
            assert_eq!(orders.below(*root, bound), expected);
            let gap: u128 =
                scan.range(..bound).map(|(v, n)| u128::from(bound - v) * u128::from(*n)).sum();
            assert_eq!(expected.gap(bound), gap);
            if step % 16 == 0 {
                let most = 2 * (scan.len() + 1).ilog2() as usize + 1;
                assert!(depth(&orders, *root) <= most, "{} nodes", scan.len());
            }
        }
        let nodes: usize = scans.iter().map(BTreeMap::len).sum();
        assert_eq!(orders.nodes.len(), 1 + nodes + orders.free.len(), "freed nodes are reused");
    }

    #[test]
    fn numbers_that_come_in_order_do_not_make_a_list() {
        let mut orders = Orders::new();
        let mut root = EMPTY;
        for value in 0..10_000 {
            root = orders.insert(root, value);
        }
        assert!(depth(&orders, root) <= 27, "{}", depth(&orders, root));
        for value in 0..9_990 {
            root = orders.remove(root, value);
        }
        assert!(depth(&orders, root) <= 7);
        assert_eq!(orders.below(root, u64::MAX).count, 10);
    }
}
