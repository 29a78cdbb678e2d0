#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpt2/record/record.hpp"

/// @file
/// The first number, in the order of computation, in which two runs differ, and its likely cause.

namespace rankwise {

/// A comparison of two records.
struct Comparison {
  std::int64_t compared = 0;       ///< tensors, or parts of the batch of them, that both runs have
  bool bits = false;               ///< true if they had to be equal in every bit; otherwise nearly equal
  std::int64_t step = -1;          ///< step of the first difference; -1: there is none
  StepPhase phase{};               ///< phase of it
  std::string tensor;              ///< name of the tensor
  std::string text;                ///< its place and likely cause, one sentence or more; empty: none
  std::string step_of_one;         ///< the first step that only one run has, in a sentence; empty: none
  std::vector<std::string> after;  ///< further tensors that differ, in order, the next three
};

/// Compares what two runs computed, whatever their layouts: tensors of the same step, phase, name and sequences.
/// In exact arithmetic all bits must be equal. Otherwise the norm of a difference may be a part of the norm, which grows with the
/// depth of the computation and with the steps.
/// @param right  the run that is right.
/// @param other  the run that is looked at.
/// @throws UserError  if they have nothing in common.
Comparison compare(const Record& right, const Record& other);

}  // namespace rankwise
