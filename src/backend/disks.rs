//! The file systems of a backend's images: reported by it, measured by criswitch.

use super::Backend;
use crate::dialer::Dialer;
use crate::disks;

impl Backend {
    /// Keeps what a reply to `ImageFsInfo` reports, if it can be read.
    pub(crate) fn report_disks(&self, reply: &[u8]) {
        if self.locked().disks.report(reply).is_ok() {
            self.disks_reported.notify_one();
        }
    }

    /// Waits until they are reported, and measures them.
    pub(crate) async fn measure_disks(&self) {
        self.disks_reported.notified().await;
        // What is simulated in memory has no disk.
        if matches!(self.dialer, Dialer::Socket) {
            let mountpoints = self.locked().disks.mountpoints();
            let measured = self.disk_work.run(|| disks::measure(mountpoints)).await;
            let measured = measured.unwrap_or_default();
            self.locked().disks.measured(&measured);
        }
    }
}
