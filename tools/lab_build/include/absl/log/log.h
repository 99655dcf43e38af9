// Stands in for Abseil's header of this name.
#include "absl/log/check.h"
