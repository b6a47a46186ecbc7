//! `redhare volume delete`.

use clap::Args;
use master::{Client, v1};

use super::force::confirm;
use crate::commands::cluster::ClusterArguments;
use crate::output::{Failure, Output};

pub(super) const EXAMPLES: &str = "Examples:\n  redhare volume delete scratch\n  redhare volume delete disk --yes\n\n\
    Of a volume that is exported, and so may be a disk of hosts that use it, it is asked whether that is meant; without a terminal it takes --yes.";

#[derive(Args)]
pub(super) struct DeleteArguments {
    /// Its name
    name: String,
    /// Do not ask, though it is exported
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(
    cluster: &ClusterArguments,
    arguments: DeleteArguments,
    output: &Output,
) -> Result<(), Failure> {
    let DeleteArguments { name, yes } = arguments;
    if !yes {
        let request = v1::ShowVolumeRequest { name: name.clone() };
        let shown = cluster.call(|client: Client| async move { client.show_volume(request).await })?;
        let portals = shown.volume.unwrap_or_default().portals.len();
        if portals > 0 {
            let to_know = format!(
                "volume {name} is exported by {portals} nodes, and hosts may use it as a disk: see that none does"
            );
            let question = format!(
                "Volume {name} is exported by {portals} nodes. Does no host use it, and may all that is in it go?"
            );
            confirm(&name, &to_know, &question)?;
        }
    }
    let request = v1::DeleteVolumeRequest { name: name.clone() };
    let answer = cluster.call(|client: Client| async move { client.delete_volume(request).await })?;
    let view = serde_json::json!({ "name": name, "number": answer.number });
    output.print(&view, || format!("volume {name} is being deleted"));
    Ok(())
}
