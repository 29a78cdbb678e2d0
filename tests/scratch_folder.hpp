#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unistd.h>

/// @file
/// Files for tests: a folder that vanishes, and the real data where they are.

namespace rankwise {

/// An empty folder of its own, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() : path_(std::filesystem::temp_directory_path() / ("rankwise-" + std::to_string(getpid())))
  {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder()
  {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  /// The path of a file in it, which need not exist.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Number of files in it.
  std::ptrdiff_t files() const
  {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

/// Makes a file of @p content.
inline void make_file(const std::string& path, std::string_view content)
{
  std::ofstream(path, std::ios::binary) << content;
}

/// The content of a file.
inline std::string read_file(const std::string& path)
{
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The path of a file of real data, in the folder that RANKWISE_DATA names or in shared/data beside the checkout; empty
/// when it is not there.
inline std::string real_data(const std::string& name)
{
  const char* const folder = std::getenv("RANKWISE_DATA");
  const auto checkout = std::filesystem::path(__FILE__).parent_path().parent_path();
  const auto path = (folder != nullptr ? std::filesystem::path(folder) : checkout / "../shared/data") / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace rankwise
