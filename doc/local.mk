# Pages for people.
