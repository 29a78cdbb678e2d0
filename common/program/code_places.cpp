#include "common/program/code_places.hpp"

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/source_location.hpp"

#ifdef __GLIBC__
#include <link.h>
#endif

namespace rankwise {

namespace {

/// Address range of the program's own code.
struct Program {
  std::uintptr_t base = 0, begin = 0, end = 0;
};

Program find_program()
{
  Program program;
#ifdef __GLIBC__
  const auto first_object = [](dl_phdr_info* object, std::size_t, void* to) {
    auto& found = *static_cast<Program*>(to);
    found.base = object->dlpi_addr;
    for (const ElfW(Phdr) & part : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
      if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
      const std::uintptr_t begin = found.base + part.p_vaddr;
      if (found.begin == 0) found.begin = begin;
      found.end = begin + part.p_memsz;
    }
    return 1;  // the first object is the program
  };
  dl_iterate_phdr(first_object, &program);
#endif
  return program;
}

/// Standard output of a command, line by line.
std::vector<std::string> lines_of(const std::string& command)
{
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<std::string> lines;
  if (pipe == nullptr) return lines;
  std::array<char, 4096> piece{};
  std::string text;
  while (std::fgets(piece.data(), piece.size(), pipe.get()) != nullptr) {
    text += piece.data();
    if (text.back() != '\n') continue;
    text.pop_back();
    lines.push_back(std::exchange(text, {}));
  }
  return lines;
}

/// "space::f(int) const" without its parameters and what follows them.
std::string_view without_parameters(std::string_view function)
{
  int open = 0;
  for (std::size_t i = function.size(); i-- > 0;) {
    if (function[i] == ')') ++open;
    if (function[i] == '(' && --open == 0) return function.substr(0, i);
  }
  return function;
}

/// Converts addr2line's "f(int) at /path/file.cpp:12" to "f (file.cpp:12)".
std::string place_of(std::string_view line)
{
  const std::size_t at = line.rfind(" at ");
  if (at == line.npos || line.starts_with("??")) return "";
  const std::string_view function = without_parameters(line.substr(0, at));
  std::string_view source = short_file_name(line.substr(at + 4));
  source = source.substr(0, source.find(" (discriminator"));
  if (source.ends_with('?')) return std::string(function);
  return fmt::format("{} ({})", function, source);
}

}  // namespace

std::uint64_t place_in_program(const void* address)
{
  static const Program program = find_program();
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  return program.begin <= place && place < program.end ? place - program.base : 0;
}

std::vector<std::string> names_of_places(const std::vector<std::uint64_t>& places)
{
  std::vector<std::string> names(places.size());
  std::error_code failed;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", failed).string();
  if (places.empty() || failed || program.find('\'') != program.npos) return names;
  std::string command = fmt::format("timeout 10 addr2line -Cfpe '{}'", program);
  // A return address follows the call: the byte before it belongs to the call.
  for (const std::uint64_t place : places) command += fmt::format(" {:#x}", place == 0 ? 0 : place - 1);
  const std::vector<std::string> lines = lines_of(command + " 2>/dev/null");
  for (std::size_t i = 0; i < places.size() && lines.size() == places.size(); ++i)
    if (places[i] != 0) names[i] = place_of(lines[i]);
  return names;
}

}  // namespace rankwise
