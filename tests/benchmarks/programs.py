# ruff: noqa: E501
"""Programs as XLA compiles them for the H100, and PTX of small kernels."""

# Instructions of the step of `SMALL_MODEL` as XLA compiles it for the H100: lines of the
# optimized program, without most of their metadata. The trip count of the loop was
# changed to five. Added were the transfers, of which two are one launch, beside a copy.
STEP = """\
HloModule jit_step, is_scheduled=true

%fused_slice (param_0.1: bf16[5,512,32], param_1.2: s32[]) -> bf16[512,32] {
  %param_0.1 = bf16[5,512,32]{2,1,0} parameter(0)
  %param_1.2 = s32[] parameter(1)
  %constant.3 = s32[] constant(0)
  %dynamic-slice.4 = bf16[1,512,32]{2,1,0} dynamic-slice(%param_0.1, %param_1.2, %constant.3, %constant.3), dynamic_slice_sizes={1,512,32}, metadata={op_name="jit(step)/transpose(jvp(blocks))/while/body/dynamic_slice"}
  ROOT %bitcast.5 = bf16[512,32]{1,0} bitcast(%dynamic-slice.4)
}

%fused_update (param_0.6: f32[5,512,32], param_1.7: f32[512,32], param_2.8: s32[]) -> f32[5,512,32] {
  %param_0.6 = f32[5,512,32]{2,1,0} parameter(0)
  %param_1.7 = f32[512,32]{1,0} parameter(1)
  %param_2.8 = s32[] parameter(2)
  %bitcast.9 = f32[1,512,32]{2,1,0} bitcast(%param_1.7)
  %constant.10 = s32[] constant(0)
  ROOT %dynamic-update-slice.11 = f32[5,512,32]{2,1,0} dynamic-update-slice(%param_0.6, %bitcast.9, %param_2.8, %constant.10, %constant.10), metadata={op_name="jit(step)/jvp(blocks)/while/body/dynamic_update_slice"}
}

%body (arg: (s32[], f32[5,512,32], bf16[5,512,32])) -> (s32[], f32[5,512,32], bf16[5,512,32]) {
  %arg = (s32[], f32[5,512,32]{2,1,0}, bf16[5,512,32]{2,1,0}) parameter(0)
  %index = s32[] get-tuple-element(%arg), index=0
  %sums = f32[5,512,32]{2,1,0} get-tuple-element(%arg), index=1
  %blocks = bf16[5,512,32]{2,1,0} get-tuple-element(%arg), index=2
  %loop_dynamic_slice_fusion = bf16[512,32]{1,0} fusion(%blocks, %index), kind=kLoop, calls=%fused_slice
  %all-reduce-start = bf16[512,32]{1,0} all-reduce-start(%loop_dynamic_slice_fusion), replica_groups={{0,1}}, to_apply=%add, metadata={op_name="jit(step)/transpose(jvp(blocks))/while/body/attention/psum"}
  %custom-call.15 = (f32[512,32]{1,0}, s8[33554432]{0}) custom-call(%loop_dynamic_slice_fusion, %loop_dynamic_slice_fusion), custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(step)/jvp(blocks)/while/body/checkpoint/rematted_computation/attention/norm/dot_general"}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
  %all-reduce-done = bf16[512,32]{1,0} all-reduce-done(%all-reduce-start)
  %product = f32[512,32]{1,0} get-tuple-element(%custom-call.15), index=0
  %loop_dynamic_update_slice_fusion = f32[5,512,32]{2,1,0} fusion(%sums, %product, %index), kind=kLoop, calls=%fused_update
  ROOT %tuple.17 = (s32[], f32[5,512,32]{2,1,0}, bf16[5,512,32]{2,1,0}) tuple(%index, %loop_dynamic_update_slice_fusion, %blocks)
}

%permuted.collectives_group (a.1: bf16[1,3,64], b.1: bf16[1,2,64]) -> (bf16[1,3,64], bf16[1,2,64]) {
  %a.1 = bf16[1,3,64]{2,1,0} parameter(0)
  %b.1 = bf16[1,2,64]{2,1,0} parameter(1)
  %permute-start.1 = (bf16[1,3,64]{2,1,0}, bf16[1,3,64]{2,1,0}) collective-permute-start(%a.1), source_target_pairs={{0,1}}, metadata={op_name="ppermute"}
  %permute-done.1 = bf16[1,3,64]{2,1,0} collective-permute-done(%permute-start.1)
  %permute-start.2 = (bf16[1,2,64]{2,1,0}, bf16[1,2,64]{2,1,0}) collective-permute-start(%b.1), source_target_pairs={{1,0}}, metadata={op_name="ppermute"}
  %permute-done.2 = bf16[1,2,64]{2,1,0} collective-permute-done(%permute-start.2)
  ROOT %tuple.1 = (bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0}) tuple(%permute-done.1, %permute-done.2)
}

%scattered (param: f32[16,64]) -> f32[8,64] {
  %param = f32[16,64]{1,0} parameter(0)
  ROOT %reduce-scatter.1 = f32[8,64]{1,0} reduce-scatter(%param), replica_groups={{0,1}}, dimensions={0}, to_apply=%add, metadata={op_name="parameters/reduce_scatter"}
}

ENTRY %main (p0: bf16[1,64,64,6], p1: bf16[6,4,4,6], p2: bf16[1,32,32,6], p3: (s32[], f32[5,512,32], bf16[5,512,32]), a: bf16[1,3,64], b: bf16[1,2,64], x: f32[16,64]) -> bf16[6,4,4,6] {
  %p0 = bf16[1,64,64,6]{3,2,1,0} parameter(0)
  %p1 = bf16[6,4,4,6]{3,2,1,0} parameter(1)
  %p2 = bf16[1,32,32,6]{3,2,1,0} parameter(2)
  %p3 = (s32[], f32[5,512,32]{2,1,0}, /*index=2*/bf16[5,512,32]{2,1,0}) parameter(3)
  %a = bf16[1,3,64]{2,1,0} parameter(4)
  %b = bf16[1,2,64]{2,1,0} parameter(5)
  %x = f32[16,64]{1,0} parameter(6)
  %cudnn-conv.23 = (bf16[1,32,32,6]{3,2,1,0}, u8[0]{0}) custom-call(%p0, %p1), window={size=4x4 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward", metadata={op_name="jit(step)/jvp(embedding)/conv_general_dilated"}
  %cudnn-conv-bw-input.20 = (bf16[1,64,64,6]{3,2,1,0}, u8[0]{0}) custom-call(%p2, %p1), window={size=4x4 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardInput", metadata={op_name="jit(step)/transpose(jvp(embedding))/conv_general_dilated"}
  %while.444 = (s32[], f32[5,512,32]{2,1,0}, bf16[5,512,32]{2,1,0}) while(%p3), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0"}}
  %collective-permute.30 = bf16[1,32,32,6]{3,2,1,0} collective-permute(%p2), source_target_pairs={{0,1},{1,0}}, metadata={op_name="jit(step)/jvp(embedding)/halo/ppermute"}
  %tuple-start = ((bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0}), (bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0})) async-start(%a, %b), calls=%permuted.collectives_group, frontend_attributes={_collectives_group=""}
  %copy.1 = bf16[1,3,64]{2,1,0} copy(%a)
  %tuple-done = (bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0}) async-done(%tuple-start), metadata={op_name="jit(step)/jvp(embedding)/halo/jit(permuted)"}
  %scatter-start = ((f32[16,64]{1,0}), f32[8,64]{1,0}) async-start(%x), calls=%scattered
  %scatter-done = f32[8,64]{1,0} async-done(%scatter-start)
  ROOT %cudnn-conv-bw-filter.22 = (bf16[6,4,4,6]{3,2,1,0}, u8[0]{0}) custom-call(%p0, %p2), window={size=4x4 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter", metadata={op_name="jit(step)/transpose(jvp(embedding))/conv_general_dilated"}
}
"""

# A product of float8 values, of which one is converted first.
FLOAT8 = """\
HloModule step, is_scheduled=true

%gemm (a: f8e4m3fn[8,16], b: f8e4m3fn[16,32]) -> f32[8,32] {
  %a = f8e4m3fn[8,16]{1,0} parameter(0)
  %b = f8e4m3fn[16,32]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}
}

ENTRY %main (p0: f32[8,16], p1: f8e4m3fn[16,32]) -> f32[8,32] {
  %p0 = f32[8,16]{1,0} parameter(0)
  %p1 = f8e4m3fn[16,32]{1,0} parameter(1)
  %convert.1 = f8e4m3fn[8,16]{1,0} convert(%p0)
  ROOT %fusion.1 = f32[8,32]{1,0} fusion(%convert.1, %p1), kind=kCustom, calls=%gemm
}
"""

# A case of a kernel, the launches that XLA lists, and those of two other kernels.
CASE = """\
HloModule jit_case, is_scheduled=true

ENTRY %main (p0: f32[200,128]) -> f32[4,128] {
  %p0 = f32[200,128]{1,0} parameter(0)
  %pallas_call.1 = f32[4,128]{1,0} custom-call(%p0), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(case)/powers_0_flops/pallas_call"}
  ROOT %copy.1 = f32[4,128]{1,0} copy(%pallas_call.1)
}
"""
CASE_SEQUENCE = """\
001: kCustomKernel [source | next=002 (1)] powers_0_flops grid: [4, 1, 1] threads: [32, 1, 1]  shared_memory: 512 bytes
"""
CASE_METADATA = """\
thunk_metadata { thunk_info { profile_annotation: "pallas_call.1" thunk_id: 1 } }
"""
SEQUENCE = """\
001: kCustomKernel [source       | next=002 (1)] loop_pad_fusion grid: [128, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
002: kCustomKernel [prev=001 (1) | sink        ] window_attention_backward grid: [66, 4, 1] threads: [256, 1, 1]  shared_memory: 98304 bytes
"""
METADATA = """\
thunk_metadata {
  thunk_info {
    profile_annotation: "loop_pad_fusion"
    thunk_id: 1
  }
  thunk_kind: "kCustomKernel"
}
thunk_metadata { thunk_info { profile_annotation: "pallas_call.3" thunk_id: 2 } }
"""

# PTX of two small kernels as XLA and Triton compile them, shortened. The first sums
# powers of two in a loop of 50 turns, of which LLVM runs two at once, and takes roots in
# the programs from the second on. The second multiplies two matrices.
POWERS = r"""
.visible .entry powers_0_flops(
 .param .u64 .ptr .align 16 powers_0_flops_param_0,
 .param .u64 .ptr .align 256 powers_0_flops_param_1
)
.reqntid 32, 1, 1
{
 .reg .pred  %p<3>;
 .reg .b32  %r<41>;
 ld.param.b64  %rd3, [powers_0_flops_param_0];
 cvta.to.global.u64  %rd1, %rd3;
 ld.param.b64  %rd4, [powers_0_flops_param_1];
 cvta.to.global.u64  %rd2, %rd4;
 griddepcontrol.wait;
 mov.u32  %r1, %ctaid.x;
 mov.u32  %r4, %tid.x;
 shl.b32  %r2, %r4, 2;
 mul.lo.s32  %r5, %r1, 6400;
 or.b32  %r3, %r5, %r2;
 mov.b32  %r38, 0f00000000;
 mov.b32  %r36, 0;
 mov.b32  %r37, %r38;
$L__BB0_1:
 add.s32  %r14, %r3, %r36;
 mul.wide.s32  %rd7, %r14, 4;
 add.s64  %rd5, %rd1, %rd7;
 // begin inline asm
 mov.u32 %r6, 0x0; mov.u32 %r7, 0x0; ld.global.v2.b32 { %r6, %r7 }, [ %rd5 + 0 ];
 // end inline asm
 ex2.approx.f32  %r15, %r6;
 ex2.approx.f32  %r16, %r7;
 add.rn.f32  %r19, %r37, %r15;
 add.rn.f32  %r20, %r38, %r16;
 add.s32  %r23, %r14, 128;
 mul.wide.s32  %rd8, %r23, 4;
 add.s64  %rd6, %rd1, %rd8;
 // begin inline asm
 mov.u32 %r10, 0x0; mov.u32 %r11, 0x0; ld.global.v2.b32 { %r10, %r11 }, [ %rd6 + 0 ];
 // end inline asm
 ex2.approx.f32  %r24, %r10;
 ex2.approx.f32  %r25, %r11;
 add.rn.f32  %r37, %r19, %r24;
 add.rn.f32  %r38, %r20, %r25;
 add.s32  %r36, %r36, 256;
 setp.ne.b32  %p1, %r36, 6400;
 @%p1 bra  $L__BB0_1;
 setp.lt.u32  %p2, %r1, 2;
 @%p2 bra  $L__BB0_4;
 sqrt.approx.f32  %r30, %r37;
 sqrt.approx.f32  %r31, %r38;
 shl.b32  %r34, %r1, 7;
 or.b32  %r35, %r34, %r2;
 mul.wide.s32  %rd12, %r35, 4;
 add.s64  %rd11, %rd2, %rd12;
 st.global.v2.b32 [ %rd11 + 0 ], { %r30, %r31 };
 bra.uni  $L__BB0_5;
$L__BB0_4:
 shl.b32  %r28, %r1, 7;
 or.b32  %r29, %r28, %r2;
 mul.wide.u32  %rd10, %r29, 4;
 add.s64  %rd9, %rd2, %rd10;
 st.global.v2.b32 [ %rd9 + 0 ], { %r37, %r38 };
$L__BB0_5:
 ret;
}
"""
PRODUCT = r"""
.visible .entry product_32768_flops(
 .param .u64 .ptr .align 16 product_32768_flops_param_0
)
{
 mov.u32 %r1, 0x0; mov.u32 %r2, 0x0; ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
 mov.u32 %r5, 0x0; ld.global.b32 { %r5 }, [ %rd2 + 0 ];
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%r6,%r7,%r8,%r9,%r10,%r11,%r12,%r13}, %rd3, %rd4, 0, 1, 1, 0, 1;
 wgmma.wait_group.sync.aligned 0;
 st.global.v4.b32 [ %rd5 + 0 ], { %r14, %r15, %r16, %r17 };
 ret;
}
"""
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'window_attention_backward' for 'sm_90a'
ptxas info    : Function properties for window_attention_backward
    416 bytes stack frame, 652 bytes spill stores, 408 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 416 bytes cumulative stack size
ptxas info    : Compile time = 535.962 ms
ptxas info    : Compiling entry function 'input_reduce_fusion' for 'sm_90a'
ptxas info    : Function properties for input_reduce_fusion
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 8320 bytes smem
"""
