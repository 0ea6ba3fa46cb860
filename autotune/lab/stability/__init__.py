"""NaN, infinities and errors over inputs that strain a softmax."""
