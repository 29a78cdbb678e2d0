#pragma once

#include <string>

#include "common/program/report.hpp"
#include "lessons/12_bert/options.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// Memory and traffic of the lesson, computed from the sizes alone.

namespace rankwise {

/// The options of another lesson, with the values of @p options.
template <class Options>
Options options_of(const BertOptions& options)
{
  Options same;
  static_cast<LessonOptions&>(same) = options;
  if constexpr (requires { same.bucket; }) same.bucket = options.bucket;
  if constexpr (requires { same.gathering; }) same.gathering = options.gathering;
  return same;
}

/// Memory and traffic of rank r of N: what lesson 03, 04 or 06 computes for the same options. Nothing is added, since
/// these lessons know only the sizes of units.
Costs costs(const BertOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes of device memory; as those lessons suggest.
std::string suggest_options(const BertOptions& options, int N, std::int64_t bytes);

/// With --zero=3, prints the FSDP units and when they are gathered.
void report_plan(Report& report, const BertOptions& options, int N);

}  // namespace rankwise
