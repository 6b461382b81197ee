//! The table of values that the hooks look into: it is made anew for each filter, and what hooks may still read stays.

use std::sync::atomic::Ordering::Release;

use rftrace::abi::{FilterControl, ValueSite, ValueTable};

use crate::filter::select::SiteValues;
use crate::host;

/// What was published last.
#[derive(Debug, Default)]
pub(crate) struct PublishedValues(Vec<SiteValues>);

impl PublishedValues {
    /// Tells the hooks what to record of these sites, which are by address. Only what is another than before takes memory, for ever.
    pub(crate) fn publish(&mut self, sites: &[SiteValues], control: &FilterControl) {
        if self.0 == sites {
            return;
        }
        self.0 = sites.to_vec();
        let sites: Vec<ValueSite> = sites
            .iter()
            .map(|site| {
                let arguments = site.arguments.clone().leak();
                ValueSite {
                    child_ip: site.child_ip as usize,
                    arguments: arguments.as_ptr(),
                    n_arguments: arguments.len(),
                    result: site.result,
                }
            })
            .collect();
        let (sites, constant) = (sites.leak(), host::constant_memory().leak());
        let table = ValueTable {
            sites: sites.as_ptr(),
            n_sites: sites.len(),
            constant: constant.as_ptr(),
            n_constant: constant.len(),
        };
        control.values.store(Box::leak(Box::new(table)), Release);
    }
}
