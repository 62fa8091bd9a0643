"""The switch inside other people's training loops; each module here needs the framework that it is named after."""
