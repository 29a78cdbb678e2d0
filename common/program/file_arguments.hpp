#pragma once

#include <string>
#include <vector>

/// @file
/// Command lines that name files beside their options, as `prepare --tokenizer=byte TEXT.txt FILE.h5`.

namespace rankwise {

/// A command line cut in two: options, for run_program(), and all other words, in order.
class FileArguments {
 public:
  /// @param argc, argv  of main.
  FileArguments(int argc, char** argv);

  /// The words that are no options: files and commands.
  const std::vector<std::string>& files() const { return files_; }
  /// Number of what is left, the program's name included.
  int count() const { return static_cast<int>(rest_.size()) - 1; }
  /// What is left, as main gets it: ended by a null pointer.
  char** rest() { return rest_.data(); }

 private:
  std::vector<std::string> files_;
  std::vector<char*> rest_;
};

}  // namespace rankwise
