"""Every format of measured kernels: what it holds, in seconds and under ksim's names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.calibration.batches import PointBatches
from ksim.calibration.datasheet import format_name, gpu_name
from ksim.calibration.measurements import Points, tagged
from ksim.calibration.reading import read
from ksim.calibration.reading.sweep import points, write_points
from ksim.foundation.errors import DataError, UnknownName
from tests.calibration.samples import EXTRACT, LOG
from tests.properties import examples

AIC = "framework,version,device,op_name,kernel_source,"


def only(parts):
    (part,) = parts
    return part


def test_a_folder_of_a_sweep_is_read_whole():
    parts = {str(part): part for part in read(EXTRACT)}
    assert [*parts] == ["attention bf16", "gemm bf16", "gemm fp8", "kv_write bf16", "moe bf16", "rms_norm bf16"]
    assert {part.gpu for part in parts.values()} == {"h200"}
    gemm, attention = parts["gemm bf16"], parts["attention bf16"]
    first = gemm.take(np.array([0]))
    assert first.describe(0) == "m=1 n=1024 k=1024" and first.seconds[0] == pytest.approx(7.581e-6)
    mixed = np.flatnonzero(attention.tags == "mixed")[0]
    qlens, kvlens = attention.batches.lengths(int(mixed))
    assert len(qlens) == len(kvlens) == 17 and qlens.tolist()[-2:] == [1, 201] and kvlens[0] == 2340
    assert {"skew", "active", "max_load"} <= {*parts["moe bf16"].columns}


def test_a_sweep_may_name_the_gpu_in_each_row(write):
    path = write("family,gpu,t,h,latency_us\nrms_norm,NVIDIA L4,1,64,3\nrms_norm,h200,1,64,2\n", "mine.csv")
    assert {part.gpu: part.seconds[0] for part in read(path)} == {"l4": 3e-6, "h200": 2e-6}


def test_a_folder_is_searched_for_every_known_format(write, parquet, tmp_path):
    write("t,h,latency_us\n1,64,3\n", "kernels_rms_norm.csv")
    write("family,latency_us\nidle,\n", "kernels_energy.csv")
    write("request,ttft\n1,0.5\n", "requests.csv")
    write(LOG.format(tool="all_reduce_perf", redop="sum"), "nccl.log")
    (tmp_path / "h200_sxm" / "1.0").mkdir(parents=True)
    write(AIC + "gemm_dtype,m,n,k,latency\nVLLM,0.24.0,NVIDIA H200,gemm,x,bfloat16,1,2,3,0.005\n",
          "h200_sxm/1.0/gemm_perf.txt")
    write(AIC + "mamba_dtype,d_state,latency\nVLLM,0.24.0,NVIDIA H200,mamba2,x,bfloat16,1,0.005\n",
          "h200_sxm/1.0/mamba2_perf.txt")
    assert sorted(part.family for part in read(tmp_path)) == ["all_reduce", "gemm", "rms_norm"]
    write("t,latency_us\n1,3\n", "kernels_rope.csv")
    with pytest.raises(DataError, match=r"kernels_rope.csv: has no column 'hq'"):
        read(tmp_path)


def test_a_csv_file_may_hold_several_families(write):
    path = write("family,dtype,m,n,k,hq,hkv,d,qlens,kvlens,t,h,latency_us,tag\n"
                 "gemm,fp8,1,2,3,,,,,,,,5.5,grid\n"
                 "\n"
                 'attention,,,,,8,2,128,1 1 201,"[40, 50, 201]",,,7,mixed\n'
                 "rms_norm,bfloat16,,,,,,,,,4,1024,2e0,\n", "mine.csv")
    parts = {str(part): part for part in read(path, gpu="h100")}
    assert {*parts} == {"gemm fp8", "attention bf16", "rms_norm bf16"}
    assert parts["gemm fp8"].seconds == pytest.approx([5.5e-6]) and parts["gemm fp8"].gpu == "h100"
    assert [lengths.tolist() for lengths in parts["attention bf16"].batches.lengths(0)] == [[1, 1, 201], [40, 50, 201]]
    assert parts["rms_norm bf16"].at(np.array([0])) == f"{path}, line 5"  # the third row, after a blank line


@examples(25)
@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99), st.sampled_from(["grid", "random"])), min_size=1),
       st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(9, 99)), min_size=1, max_size=4), min_size=1),
       st.sampled_from([".csv", ".parquet"]))
def test_points_are_the_same_after_writing_and_reading(tmp_path_factory, rows, batches, suffix):
    t, h, tags = zip(*rows, strict=True)
    norms = Points(family="rms_norm", dtype="bf16", columns={"t": np.array(t), "h": np.array(h)}, tags=np.array(tags))
    heads = {name: np.full(len(batches), size) for name, size in (("hq", 8), ("hkv", 2), ("d", 64))}
    attention = Points(family="attention", dtype="fp8", columns=heads, batches=PointBatches.of(*batches),
                       tags=tagged("mixed", len(batches)))
    path = tmp_path_factory.mktemp("points") / f"points{suffix}"
    write_points([norms, attention], path)
    again = {part.family: part for part in points(path)}
    assert again["rms_norm"].columns["t"].tolist() == list(t) and again["rms_norm"].tags.tolist() == list(tags)
    assert (again["attention"].batches.keys() == attention.batches.keys()).all()
    assert again["attention"].dtype == "fp8"


GPUS = {"gpu": ["h200_sxm", "l40s"], "backend": ["vllm"] * 2, "version": ["0.24.0", "0.22.0"], "kernel": ["k"] * 2}


def test_a_table_of_many_gpus_is_filtered(parquet):
    path = parquet({**GPUS, "timing": ["graph", "eager"], "dtype": ["nvfp4", "bfloat16"], "m": [1, 2], "n": [3, 4],
                    "k": [5, 6], "latency_us": [7.0, 8.0]}, "gemm.parquet")
    assert [(part.gpu, part.dtype, part.rows.tolist()) for part in read(path)] == [
        ("h200", "fp4", [0]), ("l40s", "bf16", [1])]
    for name in ("h200", "h200_sxm"):
        part = only(read(path, gpu=name))
        assert (part.source.backend, part.source.version, part.source.timing) == ("vllm", "0.24.0", "graph")
    with pytest.raises(DataError, match=r"has no measurements with gpu 'a100-80g'; it has h200 vllm 0.24.0 graph"):
        read(path, gpu="a100-80g")
    with pytest.raises(UnknownName, match="no GPU named 'h2000'; did you mean 'h200'"):
        read(path, gpu="h2000")


def test_tables_of_attention_have_batches_of_equal_sequences(parquet):
    heads = {"num_heads": [8, 8], "num_kv_heads": [2, 2], "head_dim": [128, 128], "window": [0, 512],
             "dtype": ["bfloat16"] * 2, "kv_dtype": ["fp8"] * 2, "latency_us": [7.0, 8.0]}
    context = only(read(parquet({**GPUS, "batch": [3, 1], "isl": [16, 32000], "prefix": [1024, 0], **heads},
                                "context.parquet"), gpu="h200"))
    assert (context.family, context.dtype, context.tags.tolist()) == ("attention", "fp8", ["prefill"])
    assert [lengths.tolist() for lengths in context.batches.lengths(0)] == [[16] * 3, [1040] * 3]
    decode = only(read(parquet({**GPUS, "batch": [3, 1], "kv_len": [70_000, 2], **heads}, "gen.parquet"), gpu="l40s"))
    assert decode.describe(0) == "hq=8 hkv=2 d=128 window=512 1 sequences, 1 new tokens, 2 in the cache"


def test_tables_of_mixtures_are_of_one_rank(parquet):
    part = only(read(parquet({**GPUS, "dtype": ["fp8"] * 2, "tokens": [4] * 2, "hidden": [64] * 2, "inter": [512] * 2,
                             "topk": [2] * 2, "experts": [8] * 2, "tp": [4] * 2, "ep": [2] * 2,
                             "distribution": ["power_law_1.2", "balanced"], "latency_us": [9.0] * 2},
                            "moe.parquet"), gpu="h200"))
    assert part.describe(0) == "t=4 e=8 topk=2 h=64 inter=128 ep=2 skew=1.2"


def test_a_table_of_collectives_has_a_family_per_operation(parquet):
    path = parquet({**GPUS, "impl": ["nccl"] * 2, "op": ["alltoall", "all_reduce"], "dtype": ["half", "int8"],
                    "gpus": [8, 4], "bytes": [1024, 2048], "latency_us": [9.0] * 2}, "collectives.parquet")
    assert sorted((part.family, part.dtype) for part in read(path)) == [("all_reduce", "int8"), ("all_to_all", "fp16")]


@pytest.mark.parametrize(("text", "family", "shape", "tag"), [
    ("gemm_dtype,m,n,k,latency\nVLLM,0.24.0,NVIDIA H200,gemm,x,bfloat16,1,2,3,0.005\n", "gemm bf16", "m=1 n=2 k=3", ""),
    ("batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,attn_dtype,kv_cache_dtype,step,latency\n"
     "VLLM,0.24.0,NVIDIA H200,context_attention,x,2,64,8,2,128,1,float16,float16,0,0.005\n", "attention bf16",
     "hq=8 hkv=2 d=128 2 sequences, 128 new tokens, 128 in the cache", "prefill"),
    ("batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,attn_dtype,kv_cache_dtype,window_size,step,"
     "latency\nVLLM,0.24.0,NVIDIA H200,generation_attention,x,2,1,8,2,128,1,bfloat16,fp8,0,63,0.005\n",
     "attention fp8", "hq=8 hkv=2 d=128 window=0 2 sequences, 2 new tokens, 128 in the cache", "decode"),
    ("mla_dtype,kv_cache_dtype,num_heads,batch_size,isl,tp_size,step,latency\n"
     "TRTLLM,1.0,NVIDIA H200,mla_generation,x,bfloat16,bfloat16,16,2,1,8,63,0.005\n", "mla bf16",
     "hq=16 tp=8 2 sequences, 2 new tokens, 128 in the cache", "decode"),
    ("moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency\n"
     "VLLM,0.24.0,NVIDIA H200,moe,x,fp8_block,4,64,512,2,8,4,1,balanced,0.005\n", "moe fp8_block",
     "t=4 e=8 topk=2 h=64 inter=128 ep=1 skew=0.0", "balanced"),
    ("nccl_dtype,num_gpus,message_size,latency\nnccl,2.29,NVIDIA H200,all_gather,NCCL,half,8,512,0.005\n",
     "all_gather fp16", "gpus=8 bytes=1024", ""),
    ("allreduce_dtype,num_gpus,message_size,latency\nVLLM,0.24.0,NVIDIA H200,all_reduce,v,bfloat16,4,64,0.005\n",
     "all_reduce bf16", "gpus=4 bytes=128", ""),
])
def test_aiconfigurators_own_tables_are_converted(write, text, family, shape, tag):
    part = only(read(write(AIC + text, "some_perf.txt")))
    assert (str(part), part.describe(0), part.tags[0], part.gpu) == (family, shape, tag, "h200")
    assert part.seconds == pytest.approx([5e-6])  # from milliseconds


@pytest.mark.parametrize(("tool", "redop", "family"), [
    ("all_reduce_perf", "sum", "all_reduce"), ("alltoall_perf", "none", "all_to_all"),
    ("all_gather_perf", "none", "all_gather"), ("sendrecv_perf", "sum", "send")])
def test_logs_of_nccl_tests_have_sizes_and_out_of_place_times(write, tool, redop, family):
    part = only(read(write(LOG.format(tool=tool, redop=redop), "run.log")))
    assert (part.family, part.dtype, part.gpu, part.source.version) == (family, "fp32", "h200", "22703")
    assert part["gpus"].tolist() == [2] * 3 and part["bytes"].tolist() == [1024, 32768, 1048576]
    assert part.seconds == pytest.approx([9.51e-6, 12.01e-6, 25.31e-6])
    assert part.at(np.array([0])).endswith("run.log, line 12")


def test_a_log_without_its_tool_goes_by_the_name_of_the_file(write):
    text = LOG.format(tool="", redop="none")
    assert only(read(write(text, "all_gather_perf.txt"))).family == "all_gather"
    with pytest.raises(DataError, match=r"run.txt:12: does not say which collective was run"):
        read(write(text, "run.txt"))
    assert only(read(write(LOG.format(tool="", redop="sum"), "run.txt"))).family == "all_reduce"


@pytest.mark.parametrize(("name", "catalogue_name"), [
    ("h200_sxm", "h200"), ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("a100_sxm", "a100-80g"),
    ("NVIDIA A100-SXM4-80GB", "a100-80g"), ("NVIDIA A100-SXM4-40GB", "a100-40g"), ("b200_sxm", "b200"),
    ("gb200", "gb200"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"), ("rtx_pro_6000_server", "rtx-pro-6000"),
    ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"), ("l40s", "l40s"), ("NVIDIA GH200 480GB", "gh200"), ("", None),
    ("Tesla V100-SXM2-16GB", None), ("NVIDIA A100 80GB PCIe", None), ("A100", None), ("H100-SXM", "h100"),
    ("A100-80GB", "a100-80g"), ("a100-40gb", "a100-40g"), ("H100 NVL", "h100-nvl"), ("NVIDIA H100 PCIe", "h100-pcie"),
    ("NVIDIA H200 NVL", "h200-nvl"), ("H100-94GB", None), ("NVIDIA H20-3e 141GB", None), ("RTX4090", "rtx-4090"),
    ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("Tesla T4", "t4"),
    ("DGX Spark", "gb10"), ("NVIDIA", None), ("80GB", None),
])
def test_gpus_have_their_names_in_the_catalogue(name, catalogue_name):
    assert gpu_name(name) == catalogue_name


def test_number_formats_have_ksims_names():
    assert [format_name(name) for name in ("bfloat16", "nvfp4", "fp8_block", "mystery")] == [
        "bf16", "fp4", "fp8_block", "mystery"]


def test_rows_of_one_gpu_are_read_of_a_public_table(tables):
    path = tables / "mla.parquet"
    assert sum(len(part) for part in read(path, gpu="h200")) == 13_251 < sum(len(part) for part in read(path))


def test_public_tables_without_a_family_are_refused(tables):
    with pytest.raises(DataError, match="linear_attention.parquet: is a table of kernels that ksim has no family for"):
        read(tables / "linear_attention.parquet")
