//! The file systems of backends' images, for metrics. The kubelet watches only the first file system of `ImageFsInfo`,
//! which is the default backend's. criswitch reads the file systems of all backends from their replies to the kubelet's
//! calls, and makes no calls for these metrics.

use std::path::Path;
use std::time::Duration;

use criswitch_cri::codec::protobuf::{self, Malformed, Path as Fields};
use criswitch_cri::rpc::fields::{
    filesystem_identifier, filesystem_usage, image_fs_info_response, uint64_value,
};
use criswitch_platform::FreeSpace;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::backend::connect::Dialer;
use crate::gate::Readable;

const IMAGE_FILESYSTEMS: Fields = &[image_fs_info_response::IMAGE_FILESYSTEMS];
const MOUNTPOINT: Fields = &[filesystem_usage::FS_ID, filesystem_identifier::MOUNTPOINT];
const USED_BYTES: Fields = &[filesystem_usage::USED_BYTES, uint64_value::VALUE];
const USED_INODES: Fields = &[filesystem_usage::INODES_USED, uint64_value::VALUE];

/// The most file systems of images that criswitch records for one backend. A runtime normally has one.
const MOST_DISKS: usize = 4;
/// How long the last report is served while the backend does not answer: as long as the kubelet waits for a `Status`.
const SERVED: Duration = Duration::from_secs(30);
/// The longest mount point that criswitch records, in bytes. Linux rejects longer paths.
const LONGEST_MOUNTPOINT: usize = 4096;
/// How long metrics show a backend's report: twice the time between two image garbage collections of the kubelet.
const TRUST: Duration = Duration::from_secs(10 * 60);

/// The file systems of a backend's images, as the backend last reported them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disks {
    disks: Vec<Disk>,
    reported: Option<Instant>,
    /// The `ImageFsInfoResponse` itself.
    reply: Readable,
}

/// A file system, and how much of it the images of the backend use.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// The mount point, or a directory below it.
    pub(crate) mountpoint: String,
    /// The bytes that the backend's images use.
    pub(crate) used_bytes: u64,
    /// The inodes that the backend's images use.
    pub(crate) used_inodes: u64,
    /// The size and free space. `None` if the file system was not measured, or if the mount point is not on this node.
    pub(crate) room: Option<FreeSpace>,
}

impl Disks {
    /// Whether the backend has reported its file systems to this run of criswitch.
    pub(crate) fn has_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// The last report, if it may be served in place of a new one.
    pub(crate) fn last_reply(&self) -> Option<Readable> {
        let is_young = self.reported.is_some_and(|at| at.elapsed() < SERVED);
        is_young.then(|| self.reply.clone())
    }

    /// Records the file systems of an `ImageFsInfoResponse`. Earlier measurements of free space stay. A reply without a
    /// image filesystem is not a report.
    ///
    /// # Errors
    /// If the reply cannot be decoded. Nothing changes then.
    pub(crate) fn report(&mut self, reply: &Readable) -> Result<(), Malformed> {
        let mut disks: Vec<Disk> = Vec::new();
        let reported = protobuf::all_bytes(reply, IMAGE_FILESYSTEMS)?;
        if reported.is_empty() {
            return Ok(());
        }
        for usage in reported {
            let mountpoint = protobuf::string(usage, MOUNTPOINT)?;
            let is_known = disks.iter().any(|disk| disk.mountpoint == mountpoint);
            let is_path =
                Path::new(mountpoint).is_absolute() && mountpoint.len() <= LONGEST_MOUNTPOINT;
            if is_known || !is_path || disks.len() == MOST_DISKS {
                continue;
            }
            disks.push(Disk {
                mountpoint: mountpoint.to_owned(),
                used_bytes: protobuf::varint(usage, USED_BYTES)?,
                used_inodes: protobuf::varint(usage, USED_INODES)?,
                room: self.room(mountpoint),
            });
        }
        self.disks = disks;
        self.reported = Some(Instant::now());
        self.reply = reply.clone();
        Ok(())
    }

    /// The last reported file systems. Empty if the report is older than [`TRUST`].
    pub(crate) fn shown(&self) -> &[Disk] {
        match self.reported {
            Some(at) if at.elapsed() < TRUST => &self.disks,
            _ => &[],
        }
    }

    pub(crate) fn mountpoints(&self) -> Vec<String> {
        self.disks
            .iter()
            .map(|disk| disk.mountpoint.clone())
            .collect()
    }

    /// Records the measured free space of each file system.
    pub(crate) fn measured(&mut self, rooms: &[(String, Option<FreeSpace>)]) {
        for disk in &mut self.disks {
            let found = rooms.iter().find(|(at, _)| *at == disk.mountpoint);
            disk.room = found.and_then(|(_, room)| *room);
        }
    }

    fn room(&self, mountpoint: &str) -> Option<FreeSpace> {
        let mut known = self
            .disks
            .iter()
            .filter(|disk| disk.mountpoint == mountpoint);
        known.next()?.room
    }
}

/// Measures the size and free space of file systems. This may block the thread.
pub(crate) fn measure(mountpoints: Vec<String>) -> Vec<(String, Option<FreeSpace>)> {
    mountpoints
        .into_iter()
        .map(|mountpoint| {
            let room = FreeSpace::of(Path::new(&mountpoint));
            (mountpoint, room)
        })
        .collect()
}

impl Backend {
    /// Records the file systems in a reply to `ImageFsInfo`. Ignores a reply that cannot be decoded.
    pub(crate) fn report_disks(&self, reply: &Readable) {
        if self.record.learn(|known| known.disks.report(reply)).is_ok() {
            self.wakeups.disks.notify_one();
        }
    }

    /// Waits until the backend reports its file systems, and measures their free space.
    pub(crate) async fn measure_disks(&self) {
        self.wakeups.disks.notified().await;
        // A backend that is simulated in memory has no disk.
        if matches!(self.dialer, Dialer::Socket) {
            let mountpoints = self.record.learn(|known| known.disks.mountpoints());
            let measured = self
                .disk_work
                .run(|| measure(mountpoints))
                .await
                .unwrap_or_default();
            self.record.learn(|known| known.disks.measured(&measured));
        }
    }
}
