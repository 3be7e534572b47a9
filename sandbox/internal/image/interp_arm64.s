#include "textflag.h"

// The same as interp_amd64.s: R19 = step, R20 = registers.

#define REGS	0x500000
#define END	WORD $0xd4200000; WORD $0x4446504c

TEXT ·start(SB),NOSPLIT|NOFRAME,$0-0
	MOVD	$REGS, R20
	MOVD	0(R20), R19
	END

TEXT ·interp(SB),NOSPLIT|NOFRAME,$0-0
loop:
	LDP	8(R19), (R0, R1)
	LDP	24(R19), (R2, R3)
	LDP	40(R19), (R4, R5)
	MOVBU	4(R19), R9
	TBZ	$0, R9, arg1
	MOVD	(R20)(R0<<3), R0
arg1:
	TBZ	$1, R9, arg2
	MOVD	(R20)(R1<<3), R1
arg2:
	TBZ	$2, R9, arg3
	MOVD	(R20)(R2<<3), R2
arg3:
	TBZ	$3, R9, arg4
	MOVD	(R20)(R3<<3), R3
arg4:
	TBZ	$4, R9, arg5
	MOVD	(R20)(R4<<3), R4
arg5:
	TBZ	$5, R9, call
	MOVD	(R20)(R5<<3), R5
call:
	MOVHU	0(R19), R8
	MOVD	$0xffff, R9
	CMP	R9, R8
	BEQ	result			// set: the first argument is the result
	SVC
	CMN	$4095, R0
	BHS	error
result:
	MOVBU	5(R19), R9
	MOVD	R0, (R20)(R9<<3)	// register 0 is a sink
	MOVW	56(R19), R10		// operand
	MOVBU	6(R19), R11		// flags
	TBZ	$0, R11, compare
	MOVD	(R20)(R10<<3), R10
compare:
	CMP	R10, R0
	BEQ	equal
	TBNZ	$1, R11, unwanted
	TBNZ	$2, R11, jump
next:
	ADD	$64, R19
	B	loop
equal:
	TBZ	$3, R11, next
jump:
	MOVW	60(R19), R9
	ADD	R9, R19
	B	loop
error:
	NEG	R0, R0
	MOVBU	7(R19), R9		// the errno that counts as 0
	CMPW	R9, R0
	BNE	fail
	MOVD	$0, R0
	B	result
unwanted:
	MOVD	$71, R0			// EPROTO
fail:
	MOVHU	2(R19), R9		// {2, step, errno, 0} to the status socket
	LSL	$32, R9
	ORR	$2, R9
	MOVD	R9, 8(R20)
	MOVD	R0, 16(R20)
	MOVD	24(R20), R0
	ADD	$8, R20, R1
	MOVD	$16, R2
	MOVD	$64, R8			// write
	SVC
exit:
	MOVD	$253, R0
	MOVD	$94, R8			// exit_group
	SVC
	B	exit
	END

// func text() (start, interp uintptr)
TEXT ·text(SB),NOSPLIT,$0-16
	MOVD	$·start(SB), R0
	MOVD	R0, start+0(FP)
	MOVD	$·interp(SB), R0
	MOVD	R0, interp+8(FP)
	RET
