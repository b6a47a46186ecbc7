//! UUIDs as text (RFC 9562, section 4).

/// The text of a UUID: hexadecimal digits in groups of 8, 4, 4, 4 and 12.
pub fn format_uuid(uuid: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*uuid));
    let groups = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    groups.join("-")
}

/// Reads a UUID's text; hyphens may stand anywhere or be absent. `None` if it is none.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let uuid = parse_uuid(text).unwrap();
        assert_eq!(uuid[..4], [0x01, 0x23, 0x45, 0x67]);
        assert_eq!(format_uuid(&uuid), text);
        assert_eq!(parse_uuid(&text.replace('-', "")), Some(uuid));
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in [
            "",
            "1234",
            "+1234567-89ab-cdef-0123-456789abcdef",
            "zz234567-89ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
    }
}
