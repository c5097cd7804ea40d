//! The disk of one replica: a file system of its own where that is possible, so that it can be
//! filled, and can fail, without touching anybody else's.
//!
//! With loop devices it is ext4 in an image on a tmpfs that is large enough. A *failing* disk is
//! that tmpfs shrunk to what it holds: the next page that the image needs is not there, the loop
//! device answers its write with an error, and fsync in the ext4 returns what the kernel makes of
//! it. `discard` gives pages of deleted files back to the tmpfs, so that a new checkpoint always
//! needs some; as each comes back, the tmpfs is shrunk once more ([`Volume::break_backing`]).
//!
//! A loop device that could write a part of what it was given reports success (Linux 6.18,
//! `lo_complete_rq`): the rest is lost, and fsync knows nothing of it. That is a disk that lies, not
//! one that fails. So blocks, requests to the device and pages of the tmpfs have one size here: a
//! request is stored as a whole or not at all. [`Volume::keeps_its_word`] breaks one on trial.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1024 * 1024;

/// The file system's size: a dozen log files of 16 MiB and some checkpoints,
const SIZE_MIB: u64 = 384;

/// and for each further member of a server.
const FURTHER_MIB: u64 = 256;

/// How often a disk that is being written to is tried to be made as large as what it holds.
const BREAK_ATTEMPTS: usize = 50;

/// Room for the file system's own blocks.
const BLOCKS_MIB: u64 = 64;

/// Bytes of a block of the ext4, of a request to the loop device, and of a page of the tmpfs.
const BLOCK: usize = 4096;

/// Files written on trial.
const TRIALS: usize = 200;

/// What a volume is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    /// A directory.
    Directory,
    /// A tmpfs.
    Tmpfs,
    /// ext4 in an image on a tmpfs.
    Ext4,
}

/// A replica's disk.
#[derive(Debug)]
pub struct Volume {
    make: Make,
    size_mib: u64,
    backing: PathBuf,
    mounted: PathBuf,
}

/// Runs a program of the system to its end.
pub fn system(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "{program} {}: {error}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is no UTF-8", path.display()))
}

/// The best that this machine offers, and why it is not better.
pub fn best_make(scratch: &Path, is_root: bool) -> (Make, Option<String>) {
    if !is_root {
        return (Make::Directory, Some("not root".to_owned()));
    }
    for make in [Make::Ext4, Make::Tmpfs] {
        let (backing, mounted) = (scratch.join("try-backing"), scratch.join("try"));
        let tried = Volume::create(make, 1, &backing, &mounted).and_then(|volume| {
            let kept = if make == Make::Ext4 { volume.keeps_its_word() } else { Ok(()) };
            volume.remove().and(kept)
        });
        for made in [backing, mounted] {
            // Empty, if it is there.
            let _ = fs::remove_dir(made);
        }
        match (make, tried) {
            (Make::Ext4, Ok(())) => return (make, None),
            (make, Ok(())) => return (make, Some("loop devices do not work here".to_owned())),
            (_, Err(error)) => println!("no {make:?} volumes here: {error:#}"),
        }
    }
    (Make::Directory, Some("nothing can be mounted here".to_owned()))
}

impl Volume {
    /// Makes it for so many members and mounts it at `mounted`.
    pub fn create(make: Make, members: usize, backing: &Path, mounted: &Path) -> Result<Volume> {
        fs::create_dir_all(mounted)?;
        let size_mib = SIZE_MIB + FURTHER_MIB * (members as u64 - 1);
        let (backing, mounted) = (backing.to_owned(), mounted.to_owned());
        let volume = Volume { make, size_mib, backing, mounted };
        let Volume { backing, mounted, .. } = &volume;
        match make {
            Make::Directory => {}
            Make::Tmpfs => mount_tmpfs(mounted, size_mib)?,
            Make::Ext4 => {
                fs::create_dir_all(backing)?;
                mount_tmpfs(backing, size_mib + BLOCKS_MIB)?;
                File::create(volume.image())?.set_len(size_mib * MIB)?;
                let image = volume.image();
                let block = BLOCK.to_string();
                let options = ["-q", "-F", "-m", "0", "-J", "size=4", "-b", &block];
                let made = system("mkfs.ext4", &[&options[..], &[text(&image)?]].concat())
                    .and_then(|_| volume.mount());
                if made.is_err() {
                    system("umount", &[text(backing)?])?;
                }
                made?;
            }
        }
        Ok(volume)
    }

    fn image(&self) -> PathBuf {
        self.backing.join("image")
    }

    fn mount(&self) -> Result<()> {
        let (image, mounted) = (self.image(), text(&self.mounted)?);
        system("mount", &["-t", "ext4", "-o", "loop,discard,noatime", text(&image)?, mounted])?;
        let named = ["--noheadings", "--output", "NAME", "--associated", text(&image)?];
        let device = system("losetup", &named)?;
        let name = device.trim().rsplit('/').next().unwrap_or_default();
        let limit = format!("/sys/block/{name}/queue/max_sectors_kb");
        fs::write(&limit, (BLOCK / 1024).to_string()).with_context(|| limit)?;
        Ok(())
    }

    /// Takes it away.
    pub fn remove(self) -> Result<()> {
        match self.make {
            Make::Directory => {}
            Make::Tmpfs => drop(system("umount", &[text(&self.mounted)?])?),
            Make::Ext4 => {
                system("umount", &[text(&self.mounted)?])?;
                system("umount", &[text(&self.backing)?])?;
            }
        }
        Ok(())
    }

    /// Fills it up with a ballast file.
    pub fn fill(&self) -> Result<u64> {
        ensure!(self.make != Make::Directory, "the disk is everybody's");
        let mut ballast = File::create(self.ballast())?;
        let (mut piece, mut written) = (vec![0x5a_u8; MIB as usize], 0);
        // Down to the last block.
        while piece.len() >= 512 {
            match ballast.write(&piece) {
                Ok(0) => break,
                Ok(length) => written += length as u64,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                    piece.truncate(piece.len() / 2);
                }
                Err(error) => return Err(error).context("writing the ballast"),
            }
        }
        // ext4 allocates late.
        match ballast.sync_all() {
            Err(error) if error.kind() != std::io::ErrorKind::StorageFull => {
                Err(error).context("writing the ballast")
            }
            _ => Ok(written),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }

    /// Makes room again.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("removing the ballast")
    }

    /// The disk under the file system takes nothing new from now on, until what it holds is deleted
    /// and makes room again; then this may be called again.
    pub fn break_backing(&self) -> Result<()> {
        ensure!(self.make == Make::Ext4, "needs a loop device");
        // Refused where something was written since it was asked how much is used.
        let mut refused = None;
        for _ in 0..BREAK_ATTEMPTS {
            let stat = rustix::fs::statvfs(&self.backing)?;
            let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
            let (option, backing) = (format!("remount,size={used}"), text(&self.backing)?);
            match system("mount", &["-o", &option, backing]) {
                Ok(_) => return Ok(()),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Mends the disk, checks the file system, and mounts it again. Nothing may use it.
    pub fn mend_backing(&self) -> Result<()> {
        let (option, backing) =
            (format!("remount,size={}m", self.size_mib + BLOCKS_MIB), text(&self.backing)?);
        system("mount", &["-o", &option, backing])?;
        system("umount", &[text(&self.mounted)?])?;
        let image = self.image();
        // 0: clean, 1: mended.
        let status = Command::new("e2fsck").args(["-f", "-p"]).arg(&image).output()?;
        if !matches!(status.status.code(), Some(0 | 1)) {
            bail!("e2fsck: {}", String::from_utf8_lossy(&status.stdout));
        }
        self.mount()
    }

    /// Breaks the disk on trial, while files are written and replaced as checkpoints are: a flush
    /// has to fail in time, and whatever was flushed before has to be there afterwards.
    fn keeps_its_word(&self) -> Result<()> {
        let mut kept: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        let mut refused = false;
        for number in 0..TRIALS {
            if number == TRIALS / 4 {
                self.break_backing()?;
            }
            // Neither a multiple of a block nor of a page.
            let content = vec![number as u8 + 1; 3 * BLOCK + 7 * number];
            let path = self.mounted.join(format!("trial-{number}"));
            if write_flushed(&path, &content).is_err() {
                refused = true;
                break;
            }
            kept.push((path, content));
            if kept.len() > 3 {
                let (oldest, _) = kept.remove(0);
                // It may be that this is refused too.
                let _ = fs::remove_file(oldest);
            }
        }
        self.mend_backing()?;
        ensure!(refused, "a full disk under a loop device fails no flush here");
        for (path, content) in kept {
            let found = fs::read(&path).unwrap_or_default();
            ensure!(
                found == content,
                "a full disk under a loop device loses what was flushed here"
            );
        }
        Ok(())
    }
}

/// Writes a file and flushes it.
fn write_flushed(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all_at(content, 0)?;
    file.sync_all()
}

fn mount_tmpfs(at: &Path, size_mib: u64) -> Result<()> {
    let option = format!("size={size_mib}m,mode=0700");
    system("mount", &["-t", "tmpfs", "-o", &option, "tmpfs", text(at)?])?;
    Ok(())
}
