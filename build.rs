//! Sets the size of the stack on Windows.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The first thread gets 8 MiB of stack, as on Linux. A deeply nested file needs more than the 1 MiB of Windows.
    match std::env::var("TARGET")?.as_str() {
        target if target.ends_with("windows-gnu") => {
            println!("cargo:rustc-link-arg-bins=-Wl,--stack,8388608")
        }
        target if target.ends_with("windows-msvc") => {
            println!("cargo:rustc-link-arg-bins=/STACK:8388608")
        }
        _ => {}
    }
    Ok(())
}
