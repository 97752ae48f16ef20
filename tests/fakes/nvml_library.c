// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml of GPUs that are not there, for programs that are started: their load goes up and down with the clock.
// FAKE_GPUS: how many. FAKE_INIT, FAKE_COUNT: codes that nvmlInit and the count return. FAKE_LOST=GPU:FROM:TO: that GPU
// is lost from its so manieth reading of utilization on, and is back at another. FAKE_ENERGY: "stuck" or "absent".
// FAKE_GPM: "absent", or "zero" while kernels run. FAKE_PID: a process on each GPU. FAKE_MIG: instances of each GPU, which
// then tells neither utilization, processes nor counters of the whole. FAKE_XID=GPU:NUMBER: an error, told once.
// FAKE_SLOW: ms that each reading of utilization takes. FAKE_HANG=GPU: that one's reading of it never returns.
// FAKE_NAME: of each GPU. FAKE_UNKNOWN: power and its limit are answered with all bits set.
// FAKE_DENIED: the code of power and clocks, as without permission.
// FAKE_RELOAD=N: the driver is loaded anew after so many readings of utilization of a GPU, and its counters begin at 0.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  unsigned index;
} Device;
typedef struct {
  double seconds;
} Sample;
enum { kMost = 64, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7, kTimeout = 10, kLost = 15 };
enum { kMostInstances = 7, kFirstInstance = 1000 };  // a part of a GPU has an index from there on

static Device devices[kMost];
static Device instances[kMost][kMostInstances];
static unsigned readings[kMost];

static unsigned number(const char* name, unsigned otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : (unsigned)atoi(text);
}
static int is_set(const char* name, const char* value) {
  const char* text = getenv(name);
  return text != NULL && strcmp(text, value) == 0;
}
static double now(void) {
  struct timespec value;
  clock_gettime(CLOCK_MONOTONIC, &value);
  return (double)value.tv_sec + 1e-9 * (double)value.tv_nsec;
}
/// Seconds since the driver was loaded.
static double since_load(const Device* device) {
  static double loaded[64];
  const unsigned at = number("FAKE_RELOAD", 0);
  if (at != 0 && readings[device->index] >= at && loaded[device->index] == 0) loaded[device->index] = now();
  return now() - loaded[device->index];
}
/// From 0 to 1, another curve for each GPU.
static double load_of(const Device* device) { return 0.5 + 0.45 * sin(now() / 3 + device->index); }
static int is_part(const Device* device) { return device->index >= kFirstInstance; }
static int is_split(const Device* device) { return number("FAKE_MIG", 0) > 0 && !is_part(device); }
static int lost(const Device* device) {
  unsigned gpu = 0, from = 0, to = 0;
  const char* text = getenv("FAKE_LOST");
  if (text == NULL || sscanf(text, "%u:%u:%u", &gpu, &from, &to) != 3 || gpu != device->index) return 0;
  return readings[gpu] >= from && readings[gpu] < to ? kLost : 0;
}

int nvmlInit_v2(void) { return (int)number("FAKE_INIT", 0); }
int nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(int code) {
  switch (code) {
    case kNotSupported: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case kLost: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) { return snprintf(text, length, "580.00") < 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = number("FAKE_GPUS", 1);
  return (int)number("FAKE_COUNT", 0);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  devices[index].index = index;
  *device = &devices[index];
  if (lost(*device)) {
    ++readings[index];
    return kLost;
  }
  return 0;
}
int nvmlDeviceGetName(Device* device, char* text, unsigned length) {
  const char* name = getenv("FAKE_NAME");
  if (name == NULL) name = "NVIDIA H100 80GB HBM3";
  return snprintf(text, length, "%s%s", name, is_part(device) ? " MIG 1g.10gb" : "") < 0;
}
int nvmlDeviceGetUUID(Device* device, char* text, unsigned length) {
  return snprintf(text, length, "GPU-%08x-0000-0000-0000-000000000000", device->index) < 0;
}
int nvmlDeviceGetPciInfo_v3(Device* device, char* info) {
  memset(info, 0, 68);
  snprintf(info + 36, 32, "00000000:%02X:00.0", device->index + 1);
  return 0;
}
int nvmlDeviceGetUtilizationRates(Device* device, unsigned* percent) {
  if (is_split(device)) return kNotSupported;
  ++readings[device->index];
  const unsigned slow = number("FAKE_SLOW", 0);
  const struct timespec pause = {slow / 1000, slow % 1000 * 1000000L};
  if (slow != 0) nanosleep(&pause, NULL);
  while (device->index == number("FAKE_HANG", kMost)) nanosleep(&(struct timespec){1, 0}, NULL);
  if (readings[device->index] == number("FAKE_RELOAD", 0)) return 1;  // not initialised
  percent[0] = is_set("FAKE_GPM", "zero") ? 90 : (unsigned)(100 * load_of(device));
  percent[1] = percent[0] / 2;
  return lost(device);
}
static int media(Device* device, unsigned* percent, unsigned* us, double share) {
  if (is_split(device)) return kNotSupported;
  *percent = (unsigned)(100 * share * load_of(device));
  *us = 167000;
  return lost(device);
}
int nvmlDeviceGetEncoderUtilization(Device* device, unsigned* percent, unsigned* us) {
  return media(device, percent, us, 0.6);
}
int nvmlDeviceGetDecoderUtilization(Device* device, unsigned* percent, unsigned* us) {
  return media(device, percent, us, 0.3);
}
int nvmlDeviceGetJpgUtilization(Device* device, unsigned* percent, unsigned* us) {
  return media(device, percent, us, 0);
}
int nvmlDeviceGetOfaUtilization(Device* device, unsigned* percent, unsigned* us) {
  return media(device, percent, us, 0);
}
int nvmlDeviceGetBAR1MemoryInfo(Device* device, unsigned long long* bar1) {
  bar1[0] = 128ULL << 30;
  bar1[2] = 2ULL << 20;
  bar1[1] = bar1[0] - bar1[2];
  return lost(device);
}
int nvmlDeviceGetMemoryInfo_v2(Device* device, unsigned long long* memory) {
  memory[1] = 80ULL << 30;
  memory[2] = 500ULL << 20;
  memory[4] = (unsigned long long)((20 + 40 * load_of(device)) * (1ULL << 30));
  memory[3] = memory[1] - memory[2] - memory[4];
  return lost(device);
}
int nvmlDeviceGetPowerUsage(Device* device, unsigned* milliwatts) {
  *milliwatts = (unsigned)(1000 * (80 + 620 * load_of(device)));
  if (number("FAKE_DENIED", 0)) return (int)number("FAKE_DENIED", 0);
  if (number("FAKE_UNKNOWN", 0)) *milliwatts = 0xFFFFFFFF;
  return lost(device);
}
int nvmlDeviceGetEnforcedPowerLimit(Device* device, unsigned* milliwatts) {
  *milliwatts = number("FAKE_UNKNOWN", 0) ? 0xFFFFFFFF : 700000;
  return lost(device);
}
int nvmlDeviceGetPowerManagementDefaultLimit(Device* device, unsigned* milliwatts) {
  return nvmlDeviceGetEnforcedPowerLimit(device, milliwatts);
}
int nvmlDeviceGetTemperature(Device* device, int sensor, unsigned* celsius) {
  (void)sensor;
  *celsius = (unsigned)(40 + 30 * load_of(device));
  return lost(device);
}
int nvmlDeviceGetClockInfo(Device* device, int type, unsigned* mhz) {
  *mhz = type == 1 ? (unsigned)(1980 - 300 * load_of(device)) : 2619;
  return lost(device);
}
int nvmlDeviceGetMaxClockInfo(Device* device, int type, unsigned* mhz) {
  *mhz = type == 1 ? 1980 : 2619;
  return lost(device);
}
int nvmlDeviceGetPerformanceState(Device* device, unsigned* state) {
  *state = 0;
  return lost(device);
}
int nvmlDeviceGetCurrentClocksEventReasons(Device* device, unsigned long long* reasons) {
  *reasons = load_of(device) > 0.8 ? 0x4 : 0;
  return lost(device);
}
int nvmlDeviceGetMigMode(Device* device, unsigned* current, unsigned* pending) {
  *current = *pending = is_split(device);
  return lost(device);
}
int nvmlDeviceGetTotalEnergyConsumption(Device* device, unsigned long long* millijoules) {
  if (is_set("FAKE_ENERGY", "absent")) return kNotSupported;
  const double seconds = is_set("FAKE_ENERGY", "stuck") ? 1 : floor(since_load(device) / 0.0995) * 0.0995;
  *millijoules = (unsigned long long)(1000 * 400 * seconds);
  return lost(device);
}
int nvmlDeviceGetMarginTemperature(Device* device, int* margin) {
  margin[1] = (int)(47 - 30 * load_of(device));
  return lost(device);
}
int nvmlDeviceGetFieldValues(Device* device, int count, char* value) {
  for (int at = 0; at < count; ++at, value += 40) {
    unsigned field;
    memcpy(&field, value, sizeof field);
    unsigned long long answer = 0;
    int type = 3, code = 0;
    switch (field) {
      case 74: answer = (unsigned long long)(1e9 * 0.12 * now()); break;
      case 76: case 269: case 270: case 271: break;
      case 82: answer = 55; break;
      case 186: answer = 350000; break;
      case 197: answer = (unsigned)(unsigned long long)(2.0e9 * now()); break;
      case 198: answer = (unsigned)(unsigned long long)(1.0e9 * now()); break;
      default: code = kNotSupported;
    }
    memcpy(value + 24, &type, sizeof type);
    memcpy(value + 28, &code, sizeof code);
    memcpy(value + 32, &answer, sizeof answer);
  }
  return lost(device);
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device* device, unsigned* value) { return *value = 5, lost(device); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device* device, unsigned* value) { return *value = 5, lost(device); }
int nvmlDeviceGetCurrPcieLinkWidth(Device* device, unsigned* value) { return *value = 16, lost(device); }
int nvmlDeviceGetMaxPcieLinkWidth(Device* device, unsigned* value) { return *value = 16, lost(device); }
int nvmlDeviceGetTotalEccErrors(Device* device, int kind, int counter, unsigned long long* count) {
  (void)kind, (void)counter;
  *count = 0;
  return lost(device);
}
int nvmlDeviceGetRemappedRows(Device* device, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  *a = *b = *c = *d = 0;
  return lost(device);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device* device, unsigned* count, char* processes) {
  if (is_split(device)) return kNotSupported;
  const unsigned pid = number("FAKE_PID", 0), wanted = pid != 0;
  const int code = *count < wanted ? kInsufficientSize : lost(device);
  *count = wanted;
  if (wanted && code == 0) {
    const unsigned long long bytes = 20ULL << 30;
    memset(processes, 0, 24);
    memcpy(processes, &pid, sizeof pid);
    memcpy(processes + 8, &bytes, sizeof bytes);
  }
  return code;
}
int nvmlGpmQueryDeviceSupport(Device* device, unsigned* support) {
  support[1] = !is_set("FAKE_GPM", "absent");
  return lost(device);
}
int nvmlGpmSampleAlloc(Sample** sample) { return (*sample = malloc(sizeof(Sample))) == NULL; }
int nvmlGpmSampleFree(Sample* sample) { return free(sample), 0; }
int nvmlGpmMigSampleGet(Device* device, unsigned instance, Sample* sample) {
  sample->seconds = load_of(&instances[device->index][instance]);
  return lost(device);
}
int nvmlGpmSampleGet(Device* device, Sample* sample) {
  if (is_split(device)) return kNotSupported;
  sample->seconds = is_set("FAKE_GPM", "zero") ? 0 : load_of(device);
  return lost(device);
}
int nvmlGpmMetricsGet(char* metrics) {
  unsigned count;
  Sample* after;
  memcpy(&count, metrics + 4, sizeof count);
  memcpy(&after, metrics + 16, sizeof after);
  for (unsigned at = 0; at < count; ++at) {
    char* metric = metrics + 24 + 40 * at;
    unsigned id;
    memcpy(&id, metric, sizeof id);
    const double share = id == 2 ? 90 : id == 5 ? 45 : id == 10 ? 65 : id < 20 ? 10 : 1500;
    const double value = share * after->seconds;
    memcpy(metric + 8, &value, sizeof value);
  }
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(Device* device, unsigned* count) { return *count = kMostInstances, lost(device); }
int nvmlDeviceGetMigDeviceHandleByIndex(Device* device, unsigned index, Device** part) {
  *part = &instances[device->index][index];
  (*part)->index = kFirstInstance + kMostInstances * device->index + index;
  return index < number("FAKE_MIG", 0) ? lost(device) : kNotFound;
}
int nvmlDeviceGetGpuInstanceId(Device* part, unsigned* id) {
  return *id = (part->index - kFirstInstance) % kMostInstances, 0;
}
int nvmlDeviceGetComputeInstanceId(Device* part, unsigned* id) { return (void)part, *id = 0, 0; }

static Device* registered[kMost];
static int is_told;
int nvmlEventSetCreate(void** set) { return *set = registered, 0; }
int nvmlEventSetFree(void* set) { return (void)set, 0; }
int nvmlDeviceRegisterEvents(Device* device, unsigned long long types, void* set) {
  (void)types, (void)set;
  registered[device->index] = device;
  return 0;
}
int nvmlEventSetWait_v2(void* set, char* event, unsigned milliseconds) {
  unsigned gpu = 0, xid = 0;
  const char* text = getenv("FAKE_XID");
  (void)set, (void)milliseconds;
  if (is_told || text == NULL || sscanf(text, "%u:%u", &gpu, &xid) != 2) return kTimeout;
  const unsigned long long facts[2] = {8, xid};
  memset(event, 0, 32);
  memcpy(event, &registered[gpu], sizeof(Device*));
  memcpy(event + 8, facts, sizeof facts);
  is_told = 1;
  return 0;
}
