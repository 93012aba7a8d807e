"""The author's kit: exercises, rubrics, how an answer is driven, compared and reported."""
