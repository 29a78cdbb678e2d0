// Compares what two runs computed, number by number, and names the first in which they differ.
//
// Sample runs:  build/data/compare_records right.h5 other.h5
//
// Both files are from --record=FILE of a lesson. The runs may have different layouts: the tensors of a run in exact arithmetic
// do not depend on them. Exit status 1 if there is a difference, or one run has more steps.

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/messages/program.hpp"
#include "lessons/frame/instruments/first_difference.hpp"

namespace rankwise {

namespace {

/// The comparison of the two files of a command line.
Comparison compare_files(const std::vector<std::string>& files)
{
  if (files.size() != 2)
    throw UserError(fmt::format("two records are needed; {} given.", files.size()),
                    "build/data/compare_records RIGHT.h5 OTHER.h5");
  return compare(read_record(files[0]), read_record(files[1]));
}

}  // namespace

}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Comparison comparison;
  OptionTable table("compare_records",
                    "Names the first number in which two runs differ: compare_records RIGHT OTHER");
  return run_file_program(
      argc, argv, table, [&](const std::vector<std::string>& files) { comparison = compare_files(files); },
      [&](const std::vector<std::string>&) {
        std::string result =
            fmt::format("{} tensors compared{}.\n{}\n", group_digits(comparison.compared),
                        comparison.bits ? " bit by bit" : " up to rounding",
                        comparison.step >= 0             ? "First difference: " + comparison.text
                        : comparison.step_of_one.empty() ? "No difference."
                                                         : "No difference in the steps that both have.");
        if (!comparison.step_of_one.empty()) result += comparison.step_of_one + "\n";
        if (!comparison.after.empty()) result += fmt::format("Then: {}.\n", fmt::join(comparison.after, "; "));
        check_system(print_text(stdout, result), "print the result");
        return comparison.step < 0 && comparison.step_of_one.empty() ? exit_success : exit_failure;
      });
}
