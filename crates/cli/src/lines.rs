//! Lines on standard error, written by a thread of their own: who reads them slowly, or not at all,
//! holds up no request.
//!
//! # Guarantee
//! - To log waits for nobody. At most [`WAITING_MAX`] lines wait to be written; more are lost, and
//!   the next that is written says how many.
//! - What waits at the end is written, for as long as the end may take.
//!
//! # Proven by
//! The test below, with a reader that does not read.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Where lines are left. Clones are handles.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    sender: SyncSender<Message>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicUsize,
    lost: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// All before it has been written.
    End(SyncSender<()>),
}

impl Lines {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        // Lines are counted, so that there is always room to ask for the end.
        let (sender, waiting) = sync_channel(WAITING_MAX + ENDS_MAX);
        let counts = Arc::<Counts>::default();
        let counted = Arc::clone(&counts);
        let thread = std::thread::Builder::new().name("admittance-lines".into());
        thread.spawn(move || write(&waiting, &counted, to))?;
        Ok(Self { sender, counts })
    }

    /// Waits until what was left has been written, but not longer than this.
    pub(crate) fn finish(&self, most: Duration) {
        let (written, end) = sync_channel(1);
        if self.sender.try_send(Message::End(written)).is_ok() {
            let _ = end.recv_timeout(most);
        }
    }
}

fn write(waiting: &Receiver<Message>, counts: &Counts, mut to: impl Write) {
    while let Ok(message) = waiting.recv() {
        match message {
            Message::Line(line) => {
                counts.waiting.fetch_sub(1, Ordering::Relaxed);
                let lost = counts.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(to, "{{\"lost_lines\":{lost}}}");
                }
                // Who closed it wants to hear nothing.
                let _ = to.write_all(&line);
            }
            Message::End(written) => {
                let _ = written.try_send(());
            }
        }
    }
}

/// One line while it is made.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    lines: &'a Lines,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let Lines { sender, counts } = self.lines;
        let text = std::mem::take(&mut self.text);
        if text.is_empty() {
            return;
        }
        let before = counts.waiting.fetch_add(1, Ordering::Relaxed);
        if before >= WAITING_MAX || sender.try_send(Message::Line(text)).is_err() {
            counts.waiting.fetch_sub(1, Ordering::Relaxed);
            counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: self, text: Vec::new() }
    }
}

/// More than a screen of them; each is a few hundred bytes.
const WAITING_MAX: usize = 1_024;
/// One end of the program, and some to spare.
const ENDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Writes nothing until it may, and remembers.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_nobody_and_what_is_lost_is_counted() {
        let slow = Slow::default();
        let lines = Lines::start(slow.clone()).expect("a thread");
        let stalled = slow.0.lock().expect("not poisoned");
        let asked = WAITING_MAX + 100;
        for _ in 0..asked {
            lines.make_writer().write_all(b"line\n").expect("left");
        }
        let lost = usize::try_from(lines.counts.lost.load(Ordering::Relaxed)).expect("few");
        // The thread may have taken one before it stalled.
        assert!((99..=100).contains(&lost), "{lost}");
        drop(stalled);
        lines.finish(Duration::from_secs(10));
        lines.make_writer().write_all(b"last\n").expect("left");
        lines.finish(Duration::from_secs(10));
        let text = String::from_utf8(slow.0.lock().expect("not poisoned").clone()).expect("text");
        assert_eq!(text.matches("line\n").count() + lost, asked);
        assert!(text.contains(&format!("{{\"lost_lines\":{lost}}}\n")), "{lost}");
        assert!(text.ends_with("last\n"), "{lost}");
    }
}
