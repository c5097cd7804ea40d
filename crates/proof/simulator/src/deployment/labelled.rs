//! Lines of several groups in one trace.

use std::cell::RefCell;
use std::io::{Result, Write};
use std::rc::Rc;

/// What all groups write to.
pub(crate) type Shared = Rc<RefCell<Box<dyn Write>>>;

/// Writes each line with the name of its group.
pub(crate) struct Labelled {
    writer: Shared,
    label: String,
    line: Vec<u8>,
}

impl Labelled {
    /// A writer for several.
    pub fn shared(writer: Box<dyn Write>) -> Shared {
        Rc::new(RefCell::new(writer))
    }

    pub fn new(writer: &Shared, label: String) -> Labelled {
        Labelled { writer: Rc::clone(writer), label, line: Vec::new() }
    }
}

impl Write for Labelled {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let mut writer = self.writer.borrow_mut();
                writer.write_all(self.label.as_bytes())?;
                writer.write_all(&self.line)?;
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.writer.borrow_mut().flush()
    }
}
