#include "tests/emulated_cuda/kernel_name.hpp"

#include <cstdint>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fstream>
#include <map>
#include <vector>

#include <fmt/format.h>

namespace emulated_cuda {

namespace {

/// The functions of a program or library by their address in the file, also those that only one source file knows.
std::map<std::uint64_t, std::string> functions_of(const char* path)
{
  std::map<std::uint64_t, std::string> functions;
  std::ifstream file(path, std::ios::binary);
  const auto read_at = [&file](std::uint64_t offset, auto* data, std::size_t count) {
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(data), static_cast<std::streamsize>(count * sizeof *data));
  };
  Elf64_Ehdr header{};
  read_at(0, &header, 1);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  read_at(header.e_shoff, sections.data(), sections.size());
  for (const Elf64_Shdr& section : sections) {
    if (!file || section.sh_type != SHT_SYMTAB) continue;
    std::vector<Elf64_Sym> symbols(section.sh_size / sizeof(Elf64_Sym));
    read_at(section.sh_offset, symbols.data(), symbols.size());
    std::string names(sections[section.sh_link].sh_size, '\0');
    read_at(sections[section.sh_link].sh_offset, names.data(), names.size());
    for (const Elf64_Sym& symbol : symbols)
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) functions[symbol.st_value] = names.c_str() + symbol.st_name;
  }
  return functions;
}

std::string demangled(const std::string& name)
{
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return name;
  const std::string result(text);
  std::free(text);
  const std::size_t parameters = result.find('(', result.starts_with("(anonymous") ? 1 : 0);
  return result.substr(0, parameters);
}

}  // namespace

std::string kernel_name(const void* function)
{
  static std::map<std::string, std::map<std::uint64_t, std::string>> files;
  Dl_info info{};
  if (dladdr(function, &info) != 0) {
    const auto [file, is_new] = files.try_emplace(info.dli_fname);
    if (is_new) file->second = functions_of(info.dli_fname);
    const auto offset =
        static_cast<std::uint64_t>(static_cast<const char*>(function) - static_cast<const char*>(info.dli_fbase));
    if (const auto found = file->second.find(offset); found != file->second.end()) return demangled(found->second);
  }
  return fmt::format("{}", function);
}

}  // namespace emulated_cuda
