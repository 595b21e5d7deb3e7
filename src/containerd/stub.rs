//! stub
use super::*;
use std::collections::BTreeMap;
/// x
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRecord {
    /// x
    pub name: String,
    /// x
    pub target: Target,
}
/// x
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// x
    pub digest: String,
}
impl Containerd {
    /// x
    pub async fn images(&self) -> Result<Vec<ImageRecord>, Error> {
        Ok(vec![])
    }
    /// x
    pub async fn delete_image(&self, _: &str) -> Result<(), Error> {
        Ok(())
    }
    /// x
    pub async fn alias(&self, _: &str, _: &str) -> Result<(), Error> {
        Ok(())
    }
    /// x
    pub async fn park_lease(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        Ok(())
    }
    /// x
    pub async fn lease_size(&self, _: &str) -> Result<u64, Error> {
        Ok(0)
    }
    /// x
    pub async fn parked_leases(&self) -> Result<Vec<Lease>, Error> {
        Ok(vec![])
    }
}
impl Lease {
    /// x
    pub fn parked_for(&self) -> Option<&str> {
        None
    }
}
