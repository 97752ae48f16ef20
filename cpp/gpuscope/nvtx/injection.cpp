// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#define NVTX_EXT_TYPES_GUARD
#include <nvtx3/nvtxDetail/nvtxExtTypes.h>
#undef NVTX_EXT_TYPES_GUARD

#include "gpuscope/nvtx/payload.h"
#include "gpuscope/nvtx/ranges.h"

namespace gpuscope::nvtx {
namespace {

// Helpers of the callbacks below. A text is a char or wchar_t string, or null.

template <class Text>
auto named(const Text* text) noexcept {
  return [text](ThreadRanges& thread, base::EventLog&) { return text_id(thread, text); };
}

auto described(Domain domain, const nvtxEventAttributes_t* attributes) noexcept {
  return [domain, attributes](ThreadRanges& thread, base::EventLog& log) {
    return describe(thread, log, domain, attributes);
  };
}

template <class Text>
uint32_t interned(const Text* text) noexcept {
  return text != nullptr ? intern(bytes_of(text), Encoding{sizeof(Text)}) : no_name();
}

// Handles are numbers, so an invalid one is harmless.
Domain number_of(nvtxDomainHandle_t domain) noexcept {
  return static_cast<Domain>(reinterpret_cast<uintptr_t>(domain));
}
template <class Handle>
Handle handle_of(uint64_t number) noexcept {
  return reinterpret_cast<Handle>(static_cast<uintptr_t>(number));
}

void without_payload(ThreadRanges&, base::EventLog&) noexcept {}

// The functions of module CORE.
void mark_ex(const nvtxEventAttributes_t* attributes) { mark(described(kDefaultDomain, attributes)); }
template <class Text>
void mark_text(const Text* message) {
  mark(named(message));
}
nvtxRangeId_t start_ex(const nvtxEventAttributes_t* attributes) {
  return start(kDefaultDomain, described(kDefaultDomain, attributes));
}
template <class Text>
nvtxRangeId_t start_text(const Text* message) {
  return start(kDefaultDomain, named(message));
}
void end_range(nvtxRangeId_t range) { end(range); }
int push_ex(const nvtxEventAttributes_t* attributes) {
  return push(kDefaultDomain, described(kDefaultDomain, attributes));
}
template <class Text>
int push_text(const Text* message) {
  return push(kDefaultDomain, named(message));
}
int pop_range() { return pop(kDefaultDomain, without_payload); }
template <class Text>
void name_category_text(uint32_t category, const Text* name) {
  name_category(kDefaultDomain, category, interned(name));
}
template <class Text>
void name_thread_text(uint32_t thread, const Text* name) {
  name_thread(thread, interned(name));
}

// The functions of module CORE2.
void domain_mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  mark(described(number_of(domain), attributes));
}
nvtxRangeId_t domain_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  return start(number_of(domain), described(number_of(domain), attributes));
}
void domain_end(nvtxDomainHandle_t, nvtxRangeId_t range) { end(range); }
int domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  return push(number_of(domain), described(number_of(domain), attributes));
}
int domain_pop(nvtxDomainHandle_t domain) { return pop(number_of(domain), without_payload); }
template <class Text>
void domain_name_category(nvtxDomainHandle_t domain, uint32_t category, const Text* name) {
  name_category(number_of(domain), category, interned(name));
}
template <class Text>
nvtxStringHandle_t register_string(nvtxDomainHandle_t, const Text* text) {
  const bool given = text != nullptr;
  return handle_of<nvtxStringHandle_t>(given ? register_text(bytes_of(text), Encoding{sizeof(Text)}) : 0);
}
template <class Text>
nvtxDomainHandle_t create_domain(const Text* name) {
  return handle_of<nvtxDomainHandle_t>(domain_of(interned(name)));
}

// One module's table: pointers to the function pointers of the copy of NVTX.
class Slots {
 public:
  Slots(const NvtxExportTableCallbacks& callbacks, NvtxCallbackModule module) noexcept {
    if (callbacks.GetModuleFunctionTable(module, &table_, &size_) == 0 || table_ == nullptr) {
      size_ = 0;
    }
  }
  bool found() const noexcept { return size_ != 0; }
  template <class F>
  void put(unsigned index, F* function) noexcept {
    if (index < size_ && table_[index] != nullptr) {
      *table_[index] = reinterpret_cast<NvtxFunctionPointer>(function);
    }
  }

 private:
  NvtxFunctionTable table_ = nullptr;
  unsigned size_ = 0;
};

void fill_core(Slots& slots) noexcept {
  slots.put(NVTX_CBID_CORE_MarkEx, &mark_ex);
  slots.put(NVTX_CBID_CORE_MarkA, &mark_text<char>);
  slots.put(NVTX_CBID_CORE_MarkW, &mark_text<wchar_t>);
  slots.put(NVTX_CBID_CORE_RangeStartEx, &start_ex);
  slots.put(NVTX_CBID_CORE_RangeStartA, &start_text<char>);
  slots.put(NVTX_CBID_CORE_RangeStartW, &start_text<wchar_t>);
  slots.put(NVTX_CBID_CORE_RangeEnd, &end_range);
  slots.put(NVTX_CBID_CORE_RangePushEx, &push_ex);
  slots.put(NVTX_CBID_CORE_RangePushA, &push_text<char>);
  slots.put(NVTX_CBID_CORE_RangePushW, &push_text<wchar_t>);
  slots.put(NVTX_CBID_CORE_RangePop, &pop_range);
  slots.put(NVTX_CBID_CORE_NameCategoryA, &name_category_text<char>);
  slots.put(NVTX_CBID_CORE_NameCategoryW, &name_category_text<wchar_t>);
  slots.put(NVTX_CBID_CORE_NameOsThreadA, &name_thread_text<char>);
  slots.put(NVTX_CBID_CORE_NameOsThreadW, &name_thread_text<wchar_t>);
}

void fill_core2(Slots& slots) noexcept {
  slots.put(NVTX_CBID_CORE2_DomainMarkEx, &domain_mark);
  slots.put(NVTX_CBID_CORE2_DomainRangeStartEx, &domain_start);
  slots.put(NVTX_CBID_CORE2_DomainRangeEnd, &domain_end);
  slots.put(NVTX_CBID_CORE2_DomainRangePushEx, &domain_push);
  slots.put(NVTX_CBID_CORE2_DomainRangePop, &domain_pop);
  slots.put(NVTX_CBID_CORE2_DomainNameCategoryA, &domain_name_category<char>);
  slots.put(NVTX_CBID_CORE2_DomainNameCategoryW, &domain_name_category<wchar_t>);
  slots.put(NVTX_CBID_CORE2_DomainRegisterStringA, &register_string<char>);
  slots.put(NVTX_CBID_CORE2_DomainRegisterStringW, &register_string<wchar_t>);
  slots.put(NVTX_CBID_CORE2_DomainCreateA, &create_domain<char>);
  slots.put(NVTX_CBID_CORE2_DomainCreateW, &create_domain<wchar_t>);
}

struct Libraries {
  std::mutex mutex;
  std::vector<std::string> paths;
};

Libraries& libraries() {
  static auto* all = new Libraries;  // leaked: a library may make its first call during exit
  static const int held =
      pthread_atfork([] { all->mutex.lock(); }, [] { all->mutex.unlock(); }, [] { all->mutex.unlock(); });
  static_cast<void>(held);
  return *all;
}

// The functions of the payload extension: events with a struct as payload, described by the library.

constexpr std::size_t kMaxFields = 1024;
constexpr std::size_t kMaxValues = 65536;

uint32_t name_or(const char* name, uint32_t otherwise) noexcept {
  return name != nullptr ? intern(bytes_of(name)) : otherwise;
}

uint64_t register_struct(nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t* attributes) {
  const auto has = [&](uint64_t field) { return (attributes->fieldMask & field) != 0; };
  if (attributes == nullptr || attributes->entries == nullptr || !has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES) ||
      !has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES) || attributes->numEntries > kMaxFields) {
    return 0;
  }
  const bool plain = !has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE) || attributes->type == NVTX_PAYLOAD_SCHEMA_TYPE_STATIC ||
                     attributes->type == NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC;
  try {
    Schema schema{};
    schema.domain = number_of(domain);
    schema.id = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID) ? attributes->schemaId : 0;
    schema.name = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME) ? name_or(attributes->name, 0) : 0;
    schema.size = has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE) ? attributes->payloadStaticSize : 0;
    for (std::size_t index = 0; plain && index < attributes->numEntries; ++index) {  // unions are not read
      const nvtxPayloadSchemaEntry_t& entry = attributes->entries[index];
      schema.fields.push_back(
          {entry.flags, entry.type, entry.arrayOrUnionDetail, entry.offset, name_or(entry.name, no_name())});
    }
    lay_out(schema, has(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT) ? attributes->packAlign : 0);
    return register_schema(std::move(schema));
  } catch (...) {
    return 0;
  }
}

uint64_t register_enum(nvtxDomainHandle_t domain, const nvtxPayloadEnumAttr_t* attributes) {
  const auto has = [&](uint64_t field) { return (attributes->fieldMask & field) != 0; };
  if (attributes == nullptr || attributes->entries == nullptr || !has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES) ||
      !has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES) || attributes->numEntries > kMaxValues) {
    return 0;
  }
  try {
    Schema schema{};
    schema.domain = number_of(domain);
    schema.id = has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID) ? attributes->schemaId : 0;
    schema.size = has(NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE) ? attributes->sizeOfEnum : sizeof(int);
    schema.align = schema.size;
    for (std::size_t index = 0; index < attributes->numEntries; ++index) {
      const nvtxPayloadEnum_t& entry = attributes->entries[index];
      schema.values.push_back({entry.value, name_or(entry.name, no_name())});
    }
    return register_schema(std::move(schema));
  } catch (...) {
    return 0;
  }
}

auto described(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) noexcept {
  return [=](ThreadRanges& thread, base::EventLog& log) {
    PayloadWriter writer(thread, log, number_of(domain));
    writer.write_blobs(blobs, count);
    return writer.message() != 0 ? writer.message() : no_name();
  };
}

void mark_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  mark(described(domain, blobs, count));
}
int push_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  return push(number_of(domain), described(domain, blobs, count));
}
int pop_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  return pop(number_of(domain), described(domain, blobs, count));
}
nvtxRangeId_t start_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t* blobs, std::size_t count) {
  return start(number_of(domain), described(domain, blobs, count));
}
// A payload at the end of a range with a number is dropped.
void end_payload(nvtxDomainHandle_t, nvtxRangeId_t range, const nvtxPayloadData_t*, std::size_t) { end(range); }

}  // namespace

bool attach(GetExportTable get_export_table) noexcept {
  const auto* callbacks = get_export_table != nullptr
                              ? static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS))
                              : nullptr;
  if (callbacks == nullptr || callbacks->struct_size < sizeof(*callbacks) ||
      callbacks->GetModuleFunctionTable == nullptr) {
    return false;
  }
  Slots core(*callbacks, NVTX_CB_MODULE_CORE);
  Slots core2(*callbacks, NVTX_CB_MODULE_CORE2);
  fill_core(core);
  fill_core2(core2);
  try {
    Dl_info info{};
    const bool known = dladdr(reinterpret_cast<const void*>(get_export_table), &info) != 0 && info.dli_fname != nullptr;
    Libraries& all = libraries();
    const std::lock_guard lock(all.mutex);
    all.paths.emplace_back(known ? info.dli_fname : "(unknown)");
  } catch (...) {  // out of memory: the list is for information only
  }
  return core.found() || core2.found();
}

std::vector<std::string> attached_libraries() {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  return all.paths;
}

bool attach_extension(const void* module) noexcept {
  const auto* info = static_cast<const nvtxExtModuleInfo_t*>(module);
  if (info == nullptr || info->structSize < sizeof(*info)) {
    return false;
  }
  if (info->moduleId != NVTX_EXT_PAYLOAD_MODULEID || info->segmentsCount == 0 || info->segments == nullptr) {
    return true;
  }
  const nvtxExtModuleSegment_t& segment = info->segments[0];
  const auto put = [&](std::size_t slot, auto* function) {
    if (slot < segment.slotCount && segment.functionSlots != nullptr) {
      segment.functionSlots[slot] = reinterpret_cast<intptr_t>(function);
    }
  };
  put(NVTX3EXT_CBID_nvtxPayloadSchemaRegister, &register_struct);
  put(NVTX3EXT_CBID_nvtxPayloadEnumRegister, &register_enum);
  put(NVTX3EXT_CBID_nvtxMarkPayload, &mark_payload);
  put(NVTX3EXT_CBID_nvtxRangePushPayload, &push_payload);
  put(NVTX3EXT_CBID_nvtxRangePopPayload, &pop_payload);
  put(NVTX3EXT_CBID_nvtxRangeStartPayload, &start_payload);
  put(NVTX3EXT_CBID_nvtxRangeEndPayload, &end_payload);
  // nvtxDomainIsEnabled stays NVTX's own, which returns yes: libraries ask once, and a profiler may start later.
  return true;
}

namespace {

std::string* offered = nullptr;  // the text in the environment, if set

bool is_offered(const char* entry) noexcept { return offered != nullptr && entry == offered->c_str(); }

}  // namespace

void offer(const std::string& path) {
  if (offered == nullptr) {
    offered = new std::string("NVTX_INJECTION64_PATH=" + path);  // leaked: the environment refers to it
    pthread_atfork(nullptr, nullptr, [] { withdraw(); });
  }
  putenv(offered->data());
}

// Not by unsetenv: a forked child may have inherited its lock.
bool withdraw() noexcept {
  bool found = false;
  for (char** entry = environ; entry != nullptr && *entry != nullptr;) {
    if (!is_offered(*entry)) {
      ++entry;
      continue;
    }
    for (char** rest = entry; *rest != nullptr; ++rest) {
      rest[0] = rest[1];
    }
    found = true;
  }
  return found;
}

std::vector<std::string> environment_of_children() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!is_offered(*entry)) {
      entries.emplace_back(*entry);
    }
  }
  return entries;
}

}  // namespace gpuscope::nvtx
