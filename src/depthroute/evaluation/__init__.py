"""What a trained model is worth on other texts and tasks, alone or as the arm of a study."""
