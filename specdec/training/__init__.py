"""Training: steps, checkpoints and schedules that whole models (`models/`) and heads (`heads/`) share."""
