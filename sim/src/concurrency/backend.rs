//! The backend: so many servers, a line before them, and work that ends.
//!
//! What is in flight is what has been admitted and has not ended here, whoever asked for it and
//! whether that process still lives.

use std::collections::VecDeque;

/// A piece of work, from its admission to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) node: usize,
    pub(super) incarnation: u64,
    /// When it was admitted, and how many were in flight on its node under which ceiling.
    pub(super) at: u64,
    pub(super) in_flight: u32,
    pub(super) ceiling: u32,
    /// How long it takes once a server has it.
    pub(super) length: u64,
    /// It is aborted then.
    pub(super) deadline: u64,
}

/// Which piece of work: places are used again, counts never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId {
    place: usize,
    count: u64,
}

/// Something that ends work: when, and which.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) at: u64,
    pub(super) id: WorkId,
}

pub(super) struct Backend {
    servers: u32,
    busy: u32,
    line: VecDeque<WorkId>,
    works: Vec<Option<Entry>>,
    free: Vec<usize>,
    count: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    work: Work,
    count: u64,
    is_served: bool,
}

impl Backend {
    pub(super) const fn new(servers: u32) -> Self {
        Self {
            servers,
            busy: 0,
            line: VecDeque::new(),
            works: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }

    /// All that has not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.works.len() - self.free.len()
    }

    /// Work arrives; says when it ends, or is given up.
    pub(super) fn begin(&mut self, at: u64, work: Work) -> End {
        self.count += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.works.push(None);
            self.works.len() - 1
        });
        let id = WorkId { place, count: self.count };
        let is_served = self.busy < self.servers;
        self.works[place] = Some(Entry { work, count: self.count, is_served });
        if is_served {
            self.busy += 1;
            End { at: (at + work.length).min(work.deadline), id }
        } else {
            self.line.push_back(id);
            End { at: work.deadline, id }
        }
    }

    /// Work ends, if it has not yet; and the next in line begins.
    pub(super) fn end(&mut self, at: u64, id: WorkId) -> Option<(Work, Option<End>)> {
        let entry = self.works[id.place].filter(|entry| entry.count == id.count)?;
        self.works[id.place] = None;
        self.free.push(id.place);
        if !entry.is_served {
            return Some((entry.work, None));
        }
        self.busy -= 1;
        Some((entry.work, self.next(at)))
    }

    fn next(&mut self, at: u64) -> Option<End> {
        while let Some(id) = self.line.pop_front() {
            let Some(entry) = &mut self.works[id.place] else { continue };
            if entry.count != id.count {
                continue;
            }
            entry.is_served = true;
            self.busy += 1;
            let at = (at + entry.work.length).min(entry.work.deadline);
            return Some(End { at, id });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(length: u64, deadline: u64) -> Work {
        Work { node: 0, incarnation: 0, at: 0, in_flight: 1, ceiling: 1, length, deadline }
    }

    #[test]
    fn work_waits_in_line_until_a_server_is_free_or_its_time_is_up() {
        let mut backend = Backend::new(1);
        let first = backend.begin(0, work(10, 100));
        let second = backend.begin(0, work(10, 5));
        let third = backend.begin(0, work(10, 15));
        assert_eq!((first.at, second.at, third.at), (10, 5, 15));
        assert!(matches!(backend.end(5, second.id), Some((_, None))), "given up in line");
        let (_, next) = backend.end(10, first.id).unwrap();
        let next = next.unwrap();
        assert_eq!((next.at, next.id), (15, third.id), "its deadline is before its end");
        assert_eq!(backend.in_flight(), 1);
        assert!(backend.end(10, first.id).is_none(), "it has ended");
        assert!(backend.end(15, third.id).is_some());
        assert_eq!((backend.in_flight(), backend.busy), (0, 0));
    }
}
