#pragma once

#include "lessons/frame/options.hpp"

/// @file
/// The options of lesson 01: those of training.

namespace rankwise {

/// Options of a run on one device, which has no options for messages.
struct SingleDeviceOptions : LessonOptions {};

/// Declares the options of training and of records.
void declare(OptionTable& table, SingleDeviceOptions& options);
/// Refuses more than one rank.
void check_lesson(const SingleDeviceOptions& options, int N);

}  // namespace rankwise
