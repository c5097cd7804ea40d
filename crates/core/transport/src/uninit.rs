//! Reading into memory that nothing was written to yet. It would have to be filled with zeros otherwise, at each
//! large message, and that costs as much as to decrypt it. The only unsafe code of this crate.

use crate::link::Arrived;
use std::io;
use std::os::fd::AsFd;

/// Reads from `socket` behind what is in `memory`, in one call, `most` bytes at most and as many as it has
/// capacity for.
///
/// # Errors
/// As the socket's.
#[allow(unsafe_code)]
pub(crate) fn read(socket: impl AsFd, memory: &mut Vec<u8>, most: usize) -> io::Result<Arrived> {
    let spare = memory.spare_capacity_mut();
    let room = spare.len().min(most);
    let (read, _) = rustix::io::read(socket, &mut spare[..room])?;
    let bytes = read.len();
    let length = memory.len() + bytes;
    // SAFETY: `read` gives the part of the spare capacity that the system has written, which begins where that
    // begins: all bytes up to `length` are initialised, and within the capacity.
    unsafe { memory.set_len(length) };
    Ok(Arrived { bytes, all: bytes < room })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_come_behind_those_that_are_there_up_to_the_capacity() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        writer.write_all(b"one two three").unwrap();
        let mut memory = Vec::with_capacity(16);
        memory.extend_from_slice(b"> ");
        let mut expect = |most, bytes, all, content: &[u8]| {
            let arrived = read(&reader, &mut memory, most).unwrap();
            assert_eq!((arrived, &memory[..]), (Arrived { bytes, all }, content));
        };
        expect(4, 4, false, b"> one ");
        expect(100, 9, true, b"> one two three");
        writer.write_all(b"four").unwrap();
        expect(100, 1, false, b"> one two threef");
        memory.clear();
        drop(writer);
        assert_eq!(read(&reader, &mut memory, 10).unwrap(), Arrived { bytes: 3, all: true });
        assert_eq!(read(&reader, &mut memory, 10).unwrap(), Arrived { bytes: 0, all: true });
        assert_eq!(memory, b"our");
    }
}
