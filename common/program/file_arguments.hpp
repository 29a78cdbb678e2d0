#pragma once

#include <string>
#include <vector>

/// @file
/// Command lines with files in addition to options, as `prepare --tokenizer=byte TEXT.txt FILE.h5`.

namespace rankwise {

/// A command line split into options, for run_program(), and all other words, in order.
class FileArguments {
 public:
  /// @param argc, argv  of main.
  FileArguments(int argc, char** argv);

  /// The words that are not options: files and commands.
  const std::vector<std::string>& files() const { return files_; }
  /// Number of remaining arguments, the program's name included.
  int count() const { return static_cast<int>(rest_.size()) - 1; }
  /// The remaining arguments, as main gets them: ended by a null pointer.
  char** rest() { return rest_.data(); }

 private:
  std::vector<std::string> files_;
  std::vector<char*> rest_;
};

}  // namespace rankwise
