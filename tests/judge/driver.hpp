#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/memory/tensor.hpp"
#include "tests/gpt2/testing.hpp"
#include "tests/world.hpp"

/// @file
/// Programs that run an exercise for the judge (scripts/course/judge.py). Such a program gets the inputs of each case as a
/// line of JSON and answers with a line of outputs. It holds no expected value: the same program with the reference
/// solution gets the same inputs, and the judge compares what both answer.

namespace rankwise::judge {

using Json = nlohmann::json;

/// An exercise that this program runs.
class Exercise {
 public:
  /// @param number  as "01.1".
  /// @param run     outputs of one case, from its inputs. With several ranks each calls it with the same inputs.
  Exercise(std::string number, std::function<Json(const Json&)> run);
};

/// Elements of a tensor as numbers; exact for every type.
Json numbers(const Tensor& values);
/// A number that depends on every bit of a tensor.
std::string digest(const Tensor& values);
/// A tensor of numbers in (-1, 1) that depend on a seed.
/// @param seed  of the case, differs by tensor.
Tensor random_tensor(testing::Laboratory& lab, DType type, const Shape& shape, std::int64_t seed);
/// The type of a name, as "bf16".
DType type_of(const Json& name);

}  // namespace rankwise::judge
