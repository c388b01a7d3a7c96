//! `criswitch check --node`, which checks that the machine is set up for criswitch, and `criswitch node`, which plans
//! the set-up, makes it, and undoes it.

mod actions;
mod apply;
mod changes;
mod checks;
pub mod collisions;
mod facts;
#[cfg_attr(not(feature = "faults"), path = "no_faults.rs")]
mod faults;
mod finding;
mod follow;
mod journal;
pub mod kubelet;
mod kubelet_age;
mod kubelet_files;
mod layout;
pub mod machine;
mod plan;
mod rancher;
mod root;
mod run;
mod runtime_settings;
mod settings;
mod sockets;
mod stages;
mod start;
mod steps;
mod systemd;
mod transient;
mod tries;
mod unit;
mod workloads;

use anyhow::ensure;
use clap::Subcommand;
use criswitch_client::exit::Verdict;
use criswitch_platform::kernel;

pub use facts::Discover;

/// The commands of `criswitch node`.
#[derive(Subcommand)]
pub enum NodeCommand {
    /// Show the steps that would change this node, and what blocks them.
    Plan(plan::PlanArguments),
    /// Set up this node or a mounted image, and undo everything if a step fails.
    Apply(apply::ApplyArguments),
    /// Undo the last apply, or one that was interrupted.
    Undo(apply::UndoArguments),
    /// Undo every apply, unless pods still need criswitch.
    Uninstall(apply::UninstallArguments),
    /// Show whether a machine still matches its last apply.
    Status(apply::NodeStatusArguments),
    /// Apply a specification to this pod's node and report the node's state, until SIGTERM.
    Follow(follow::FollowArguments),
    /// Run a command of criswitch on this pod's node, such as status.
    Run(run::RunArguments),
}

impl NodeCommand {
    /// Runs the command.
    pub fn run(&self, discover: Discover) -> anyhow::Result<Verdict> {
        ensure!(kernel::IS_LINUX, "criswitch node is for nodes of Linux");
        match self {
            NodeCommand::Plan(plan) => plan.run(discover),
            NodeCommand::Apply(apply) => apply.run(discover),
            NodeCommand::Undo(undo) => undo.run(),
            NodeCommand::Uninstall(uninstall) => uninstall.run(),
            NodeCommand::Status(status) => status.run(),
            NodeCommand::Follow(follow) => follow.run(),
            NodeCommand::Run(run) => run.run(),
        }
    }
}
