//! What Identify answers (NVM Express Base Specification 2.0c, section 5.17; NVM Command Set Specification 1.0c,
//! section 4.1.5). Every answer is 4096 bytes.

mod command_set;
mod controller;
mod descriptor;
mod list;
mod namespace;

pub use command_set::{
    COMBINATION_NVM, CommandSetCombinations, IdentifyNamespaceIndependent, IdentifyNvmController,
    IdentifyNvmNamespace, NSTAT_READY,
};
pub use controller::{IdentifyController, PowerState, bits as controller_bits};
pub use descriptor::{DescriptorError, NamespaceIdentifiers};
pub use list::{
    CONTROLLER_LIST_LIMIT, ControllerList, ControllerListError, NAMESPACE_LIST_LIMIT, NamespaceList,
    NamespaceListError,
};
pub use namespace::{IdentifyNamespace, LbaFormat, bits as namespace_bits};

use super::codes::codes;

/// Length of every Identify answer, in bytes.
pub const IDENTIFY_BYTES: usize = 4096;

codes! {
    /// Which structure Identify asks for (CNS; section 5.17.1, figure 273).
    pub enum IdentifyStructure: u8 {
        Namespace = 0x00 "Identify Namespace",
        Controller = 0x01 "Identify Controller",
        ActiveNamespaceList = 0x02 "Active Namespace ID list",
        NamespaceDescriptors = 0x03 "Namespace Identification Descriptor list",
        NvmSetList = 0x04 "NVM Set List",
        CommandSetNamespace = 0x05 "I/O Command Set specific Identify Namespace",
        CommandSetController = 0x06 "I/O Command Set specific Identify Controller",
        CommandSetActiveNamespaceList = 0x07 "I/O Command Set specific Active Namespace ID list",
        IndependentNamespace = 0x08 "I/O Command Set Independent Identify Namespace",
        AllocatedNamespaceList = 0x10 "Allocated Namespace ID list",
        AllocatedNamespace = 0x11 "Identify Namespace for an Allocated Namespace ID",
        NamespaceControllerList = 0x12 "Namespace Attached Controller list",
        ControllerList = 0x13 "Controller list",
        CommandSetCombinations = 0x1c "I/O Command Set",
    }
}

codes! {
    /// I/O command sets (CSI; section 5.17.1, figure 274).
    pub enum CommandSet: u8 {
        Nvm = 0x00 "NVM Command Set",
        KeyValue = 0x01 "Key Value Command Set",
        Zoned = 0x02 "Zoned Namespace Command Set",
    }
}
