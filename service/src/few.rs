//! Long lists for a person: the first names in full, the others by their number.

/// The first `max` of these names, and how many more there are.
pub fn few<T: AsRef<str>>(names: &[T], max: usize) -> String {
    let (first, others) = names.split_at(max.min(names.len()));
    let first = first.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    if others.is_empty() { first } else { format!("{first} and {} more", others.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(few(&["a", "b", "c"], 3), "a, b, c");
        assert_eq!(few(&["a", "b", "c", "d", "e"], 3), "a, b, c and 2 more");
        let names: Vec<String> = (1..=7).map(|n| n.to_string()).collect();
        assert_eq!(few(&names, 5), "1, 2, 3, 4, 5 and 2 more");
        assert_eq!(few(&names[..2], 5), "1, 2");
    }
}
