// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::*;
use crate::protocol::blob::Run;

fn decode(bytes: &[u8]) -> Result<(Header, Command<'_>), Malformed> {
    let header = Header::decode(bytes)?;
    Ok((header, Command::decode(&header, bytes)?))
}

#[test]
fn a_blob_as_a_kernel_sends_it() {
    let mut bytes = vec![0x0c, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend([0; 8]);
    bytes.extend([3, 0, 0, 0, 0, 0, 0, 0]);
    // Resource 7, HOST3D_GUEST, no flags, one entry, blob 9, 8 KiB.
    bytes.extend([7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    bytes.extend([9, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0x50, 0, 0, 1, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0]);
    let (header, command) = decode(&bytes).unwrap();
    assert_eq!((header.context, header.flags), (3, 0));
    let runs = vec![Run { address: 0x1_0000_5000, bytes: 0x2000 }];
    let blob = Command::CreateBlob { resource: 7, memory: 3, flags: 0, id: 9, size: 0x2000, runs };
    assert_eq!(command, blob);
    assert_eq!(blob.encode(&header), bytes);
    for end in 0..bytes.len() {
        assert!(decode(&bytes[..end]).is_err(), "{end} bytes");
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    let header = Header { kind: 0, flags: FLAG_FENCE | FLAG_RING, fence: 0x1122_3344_5566, context: 5, ring: 3 };
    for command in [
        Command::Unref { resource: 1 },
        Command::CapsetInfo { index: 1 },
        Command::Capset { id: 8 },
        Command::CreateContext { capset: 8 },
        Command::DestroyContext,
        Command::Attach { resource: 2 },
        Command::Detach { resource: 3 },
        Command::Submit { payload: &[1, 2, 3, 4] },
        Command::Map { resource: 4, offset: 1 << 33 },
        Command::Unmap { resource: 4 },
    ] {
        let bytes = command.encode(&header);
        let (seen, again) = decode(&bytes).unwrap();
        assert_eq!(Header { kind: 0, ..seen }, header);
        assert_eq!(again, command);
    }
}

#[test]
fn a_submission_longer_than_its_bytes_is_refused() {
    let mut bytes = Command::Submit { payload: &[0; 16] }.encode(&Header::default());
    put32(&mut bytes, HEADER_BYTES, 17);
    assert_eq!(decode(&bytes).unwrap_err(), Malformed::Short);
    put32(&mut bytes, HEADER_BYTES, u32::MAX);
    assert_eq!(decode(&bytes).unwrap_err(), Malformed::Short);
}

#[test]
fn displays_are_unknown() {
    let mut bytes = vec![0; 64];
    put32(&mut bytes, 0, 0x100);
    assert_eq!(decode(&bytes).unwrap_err(), Malformed::Unknown);
}

#[test]
fn answers_repeat_the_fence() {
    let header = Header { kind: 0x207, flags: FLAG_FENCE | FLAG_RING, fence: 77, context: 2, ring: 9 };
    let bytes = Answer::Done.encode(&header);
    assert_eq!(bytes.len(), HEADER_BYTES);
    assert_eq!(Header::decode(&bytes).unwrap(), Header { kind: 0x1100, ..header });
    let bytes = Answer::Error(ErrorCode::InvalidContext).encode(&header);
    assert_eq!(Header::decode(&bytes).unwrap().kind, 0x1204);
    assert_eq!(Answer::Mapped.encode(&header).len(), 32);
    assert_eq!(Answer::CapsetInfo { id: 8, version: 0, size: 24 }.encode(&header)[24..32], [8, 0, 0, 0, 0, 0, 0, 0]);
}
