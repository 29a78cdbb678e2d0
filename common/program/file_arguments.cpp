#include "common/program/file_arguments.hpp"

#include <string_view>

namespace rankwise {

FileArguments::FileArguments(int argc, char** argv)
{
  for (int i = 0; i < argc; ++i) {
    if (i > 0 && !std::string_view(argv[i]).starts_with("--"))
      files_.emplace_back(argv[i]);
    else
      rest_.push_back(argv[i]);
  }
  rest_.push_back(nullptr);
}

}  // namespace rankwise
