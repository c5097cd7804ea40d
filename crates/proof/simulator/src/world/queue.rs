//! What is to happen, by time. A heap of times and places; events stay where they were put, since
//! moving them about is what a queue of large ones spends its time with.

use super::Event;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events by (microsecond, number); numbers are given in the order in which events are pushed.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    sequence: u64,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
}

impl Queue {
    /// Adds an event.
    pub(crate) fn push(&mut self, at_us: u64, event: Event) {
        self.sequence += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.heap.push(Reverse((at_us, self.sequence, place)));
    }

    /// When the next one is due.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_us, _, _))| *at_us)
    }

    /// Takes the next one.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((at_us, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.events[place].take().map(|event| (at_us, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_they_were_pushed() {
        let mut queue = Queue::default();
        let mut came = Vec::new();
        for (at, id) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.push(at, Event::Heal(id));
        }
        assert_eq!(queue.next_us(), Some(3));
        while let Some((at, Event::Heal(id))) = queue.pop() {
            came.push((at, id));
            if came.len() == 2 {
                queue.push(4, Event::Heal(4)); // Into a place that is free again.
            }
        }
        assert_eq!(came, [(3, 1), (3, 3), (4, 4), (5, 0), (5, 2)]);
    }
}
