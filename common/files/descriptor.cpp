#include "common/files/descriptor.hpp"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

std::string system_error(int code)
{
  return std::generic_category().message(code);
}

void check_system(bool good, std::string_view doing, SourceLocation where)
{
  if (!good) throw Error(fmt::format("cannot {}: {}", doing, system_error()), where);
}

Descriptor::Descriptor(const std::string& path, int flags, mode_t mode)
    : id_(open(path.c_str(), flags | O_CLOEXEC, mode))
{
}

Descriptor::Descriptor(Descriptor&& other) noexcept : id_(std::exchange(other.id_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept
{
  std::swap(id_, other.id_);
  return *this;
}

Descriptor::~Descriptor()
{
  if (id_ >= 0) ::close(id_);
}

bool Descriptor::close()
{
  return ::close(std::exchange(id_, -1)) == 0;
}

bool write_all(const Descriptor& file, std::span<const std::byte> bytes)
{
  while (!bytes.empty()) {
    const ssize_t count = write(file.id(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

std::int64_t read_at(const Descriptor& file, std::int64_t offset, std::span<std::byte> out)
{
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        pread(file.id(), out.data() + done, out.size() - done, offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace rankwise
