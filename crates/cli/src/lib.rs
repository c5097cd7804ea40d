//! What the command reads that others wrote: the files of a cluster's directory, and the JSON lines
//! of `perdura kv batch` and `perdura space batch`. A library of its own, so that the fuzz targets reach it.

#![forbid(unsafe_code)]

pub mod config;
pub mod kv_json;
pub mod space_json;
